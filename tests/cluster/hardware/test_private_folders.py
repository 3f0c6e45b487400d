"""Folders that are ours alone, and what is refused in their place."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.hardware import private_folders
from cluster.hardware.private_folders import (
    SOCKET_PATH,
    own_folder,
    private_folder,
    rays_folder,
    short_root,
)
from fl.errors import UserError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_for_us_alone_and_may_be_there_already(tmp_path: Path) -> None:
    made = private_folder(tmp_path / "a" / "b")
    assert mode(made) == 0o700
    assert private_folder(made) == made


def test_what_is_not_ours_alone_is_refused_in_one_line(tmp_path: Path) -> None:
    ours, file, link, wide = (tmp_path / name for name in ("ours", "file", "link", "wide"))
    private_folder(ours)
    file.touch()
    link.symlink_to(ours)
    wide.mkdir()
    wide.chmod(0o750)
    for path, reason in (
        (file, "must be a folder"),
        (link, "must be a folder"),
        (wide, "open to other users"),
    ):
        with pytest.raises(UserError, match=reason) as refused:
            private_folder(path)
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    theirs = private_folder(tmp_path / "theirs")
    os.chown(theirs, 65534, 65534)
    with pytest.raises(UserError, match="belongs to user 65534"):
        private_folder(theirs)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where own folders are made."""
    monkeypatch.setattr(private_folders, "SHORT_TMP", tmp_path)
    return tmp_path


def test_rays_folder_lies_in_one_that_is_ours_alone(parent: Path) -> None:
    with own_folder() as root:
        assert mode(root) == 0o700
        assert rays_folder(root).parent == root
        assert root.parent == parent
    assert not root.exists()


def test_a_folder_whose_sockets_would_have_too_long_a_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * SOCKET_PATH)
    long.mkdir()
    monkeypatch.setattr(private_folders, "SHORT_TMP", long)
    with pytest.raises(UserError, match="at most"):
        short_root()
    assert not [*long.iterdir()]


KILLED = """
import os, signal, sys
from pathlib import Path
from cluster.hardware import private_folders

private_folders.SHORT_TMP = Path(sys.argv[1])
with private_folders.own_folder() as made:
    print(made, flush=True)
    (made / "deep").mkdir()
    (made / "deep" / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_the_next_start_removes_what_a_killed_process_left(parent: Path) -> None:
    with own_folder() as living:
        command = [sys.executable, "-c", KILLED, str(parent)]
        killed = subprocess.run(command, capture_output=True, text=True, check=False)
        left = Path(killed.stdout.strip())
        assert left.exists(), killed.stderr
        assert living.exists(), "the other process removed the folder of a living one"
        foreign, link = parent / "onefold-notours_", parent / "onefold-linked__"
        foreign.mkdir()
        link.symlink_to(left)
        with own_folder() as next_one:
            assert not left.exists()
            assert {*parent.iterdir()} == {living, next_one, foreign, link}
    assert {*parent.iterdir()} == {foreign, link}
