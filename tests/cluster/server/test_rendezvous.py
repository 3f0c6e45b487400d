"""Where ranks meet: in a file of ours, or on one address."""

import fcntl
import os
import socket
import stat
from pathlib import Path

import pytest

from cluster.hardware.private_folders import remove_folder
from cluster.server.rank_group import (
    find_store,
    make_file,
    reaches,
    use_interface_of,
)
from cluster.server.secret_store import StoreServer
from fl.fusion.group import PeerLostError


def test_ranks_on_one_host_meet_in_a_file_that_nobody_else_can_read() -> None:
    file = make_file()
    try:
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        first, second = (find_store(file, 2, b"ours") for _ in range(2))
        first.set("here", "first")
        assert second.get("here") == b"first"
    finally:
        remove_folder(file.parent)
    assert not file.parent.exists()


def test_a_folder_that_ranks_share_holds_a_file_that_nobody_else_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_file(tmp_path / "run")
    assert file.parent.parent == tmp_path / "run"
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert reaches(file)
    assert not reaches(tmp_path / "another host's" / "store")

    def refuse(*_: object) -> None:
        raise OSError("this file system locks nothing")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        assert not reaches(file)
    remove_folder(file.parent)
    assert not [*(tmp_path / "run").iterdir()]


def test_ranks_that_share_no_folder_meet_where_the_secret_is_asked_for() -> None:
    server = StoreServer("127.0.0.1", b"ours")
    find_store(server.address, 2, b"ours").set("here", "first")
    assert find_store(server.address, 2, b"ours").get("here") == b"first"
    with pytest.raises(PeerLostError):
        find_store(server.address, 2, b"another")


def test_gloo_and_nccl_are_told_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    use_interface_of("127.0.0.1")
    loopback = os.environ["GLOO_SOCKET_IFNAME"]
    assert loopback == os.environ["NCCL_SOCKET_IFNAME"]
    assert loopback in {name for _, name in socket.if_nameindex()}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    use_interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
