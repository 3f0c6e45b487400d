"""The store for ranks that share no folder: gloo works over it, and strangers are told nothing."""

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cluster.server import secret_store
from cluster.server.secret_store import SecretStore, StoreServer
from fl.fusion.group import PeerLostError, ProcessGroup

SECRET = b"ours"


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1", SECRET)
    yield server
    server.close()


def test_what_one_sets_another_gets(server: StoreServer) -> None:
    first, second = SecretStore(server.address, SECRET), SecretStore(server.address, SECRET)
    assert not second.check(["here"])
    first.set("here", bytes(range(256)))
    first.set("there", "first")
    assert second.get("here") == bytes(range(256))
    assert second.get("there") == b"first"
    assert second.check(["here", "there"])
    assert [first.add("count", 2), second.add("count", 3)] == [2, 5]


def test_who_waits_is_woken_or_told_which_key_is_missing(server: StoreServer) -> None:
    first, second = SecretStore(server.address, SECRET), SecretStore(server.address, SECRET)
    with pytest.raises(PeerLostError, match=r"no rank has set here, there within 0\.1 s"):
        second.wait(["here", "there"], timedelta(seconds=0.1))
    later = threading.Timer(0.1, lambda: first.set("here", b"first"))
    later.start()
    assert second.get("here") == b"first"


def test_it_listens_on_one_address_alone(server: StoreServer) -> None:
    here = psutil.Process().net_connections()
    assert {c.laddr.ip for c in here if c.laddr and c.laddr.port == server.address[1]} == {
        "127.0.0.1"
    }


def test_who_does_not_know_the_secret_is_told_nothing(server: StoreServer) -> None:
    with pytest.raises(PeerLostError, match="know different secrets"):
        SecretStore(server.address, b"another")
    for told in (
        b"",
        b"\n\n",
        b"x\n" + b"0" * 64 + b"\n",
        b"\x00" * 2_000_000,
        b'{"do": "get"}\n' * 9,
    ):
        with socket.create_connection(server.address, timeout=10) as door:
            drawn = door.makefile("rb").readline()
            assert len(drawn) == 65
            try:
                door.sendall(told)
                door.shutdown(socket.SHUT_WR)
                assert door.recv(1) == b""
            except ConnectionError:  # it was closed before all of it was sent
                pass
    assert SecretStore(server.address, SECRET).add("count", 1) == 1


def test_who_speaks_as_torchs_store_is_told_nothing(server: StoreServer) -> None:
    SecretStore(server.address, SECRET).set("here", b"what is ours")
    host, port = server.address
    with pytest.raises((dist.DistNetworkError, dist.DistStoreError)) as refused:
        dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=2)).get("here")
    assert "ours" not in str(refused.value)


def test_a_proof_that_was_heard_cannot_be_used_again(server: StoreServer) -> None:
    """A stranger lets a rank answer what the store had asked, and comes back with that."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stranger = threading.Thread(target=_hear, args=(listening, _drawn(server), heard))
        stranger.start()
        with pytest.raises(PeerLostError):
            SecretStore(listening.getsockname(), SECRET)
        stranger.join()
    with socket.create_connection(server.address, timeout=10) as door:
        lines = door.makefile("rwb")
        lines.readline()
        lines.writelines(heard)
        lines.flush()
        assert len(heard) == 2
        assert lines.readline() == b""


def _drawn(server: StoreServer) -> bytes:
    with socket.create_connection(server.address, timeout=10) as door:
        return door.makefile("rb").readline()


def _hear(listening: socket.socket, drawn: bytes, heard: list[bytes]) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rwb") as lines:
        lines.write(drawn)
        lines.flush()
        heard += [lines.readline(), lines.readline()]


def test_who_is_silent_is_hung_up_on_and_keeps_nobody_out(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_store, "PROOF_S", 0.2)
    with socket.create_connection(server.address, timeout=10) as silent:
        assert SecretStore(server.address, SECRET).add("count", 1) == 1
        lines = silent.makefile("rb")
        lines.readline()
        assert lines.read() == b""


def test_a_false_store_learns_no_proof_that_it_could_use_as_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asking = threading.Thread(target=_echo, args=(listening,), daemon=True)
        asking.start()
        with pytest.raises(PeerLostError, match="know different secrets"):
            SecretStore(listening.getsockname(), SECRET)


def _echo(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rwb") as lines:
        lines.write(b"0" * 64 + b"\n")
        lines.flush()
        lines.readline()
        lines.write(lines.readline())
        lines.flush()


def test_nobody_is_let_in_once_it_is_closed(server: StoreServer) -> None:
    within = SecretStore(server.address, SECRET)
    server.close()
    with pytest.raises(PeerLostError, match="cannot be reached"):
        SecretStore(server.address, SECRET)
    assert within.add("count", 1) == 1


def test_gloo_finds_its_ranks_by_it() -> None:
    server = StoreServer("127.0.0.1", SECRET)
    ranks = mp.start_processes(
        _sum, args=(server.address,), nprocs=2, join=False, start_method="fork"
    )
    assert ranks is not None
    while not ranks.join():
        pass


def _sum(rank: int, address: tuple[str, int]) -> None:
    store = SecretStore(address, SECRET)
    group = ProcessGroup(store, rank, 2, torch.device("cpu"), SECRET, 60)
    tensor = torch.full((3,), float(rank + 1))
    group.sum(tensor)
    assert tensor.tolist() == [3.0] * 3
    dist.destroy_process_group()
