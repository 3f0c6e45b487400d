"""Folders that are ours alone, and what is refused in their place."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.hardware import private_folders
from cluster.hardware.private_folders import (
    SOCKET_PATH,
    make_folder,
    private_folder,
    rays_folder,
    remove_folder,
    short_root,
    write_private,
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


def test_a_secret_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for content in (b"one", b"two"):
        write_private(file, content)
        assert (file.read_bytes(), mode(file)) == (content, 0o600)
    assert [*tmp_path.iterdir()] == [file]


def test_rays_folder_lies_in_one_that_is_ours_alone() -> None:
    with short_root() as root:
        assert mode(root) == 0o700
        assert rays_folder(root).parent == root
    assert not root.exists()


def left_by_a_killed_process(parent: Path) -> Path:
    """A folder that a process made which was killed in it."""
    code = (
        f"import os, signal; from pathlib import Path; from {make_folder.__module__} import *\n"
        f"made = make_folder(Path({str(parent)!r}))\nprint(made, flush=True)\n"
        "(made / 'deep').mkdir(); (made / 'deep' / 'file').touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return Path(done.stdout.splitlines()[-1])


def test_the_next_start_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    living = make_folder(tmp_path)
    left = left_by_a_killed_process(tmp_path)
    assert left.exists()
    assert living.exists(), "the other process removed the folder of a living one"
    foreign, link = tmp_path / "onefold-notours_", tmp_path / "onefold-linked__"
    foreign.mkdir()
    link.symlink_to(left)
    next_one = make_folder(tmp_path)
    assert not left.exists()
    assert {*tmp_path.iterdir()} == {living, next_one, foreign, link}
    for folder in (living, next_one):
        remove_folder(folder)
    assert {*tmp_path.iterdir()} == {foreign, link}


def test_a_folder_whose_sockets_would_have_too_long_a_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * SOCKET_PATH)
    long.mkdir()
    monkeypatch.setattr(private_folders, "SHORT_TMP", long)
    with pytest.raises(UserError, match="at most"), short_root():
        pass
    assert not [*long.iterdir()]
