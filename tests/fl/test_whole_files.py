"""Files that are read whole or refused: sealed ones, JSON, and what the disk refuses."""

import errno
import json
import os
from pathlib import Path

import pytest

from fl.errors import UserError
from fl.json_files import read_json, read_json_if_whole, write_json
from fl.whole_files import (
    disk_line,
    is_of_disk,
    named_errors,
    read_sealed,
    read_text,
    refused_by_disk,
    replacing,
    write_atomically,
    write_sealed,
)


def test_the_file_takes_its_place_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"before")
    with replacing(path) as temporary:
        temporary.write_bytes(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_who_fails_leaves_the_file_as_it_was_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"before")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_users_text_has_no_mark_in_front_or_is_a_line(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "t").write_text("é\n", encoding=encoding)
        assert read_text(tmp_path / "t") == "é\n"
    (tmp_path / "t").write_text("é", encoding="utf-16")
    for name in ("t", "none", "."):
        with pytest.raises(UserError, match=r"cannot read .*; expected text in UTF-8$"):
            read_text(tmp_path / name)


CONTENT = b"what a run wrote\n" * 100


def test_what_was_written_is_read_and_its_folder_is_made(tmp_path: Path) -> None:
    file = tmp_path / "not" / "there" / "file"
    assert read_sealed(file) is None
    write_sealed(file, CONTENT)
    assert read_sealed(file) == CONTENT
    write_sealed(file, b"")
    assert read_sealed(file) == b""


def test_whatever_bit_is_another_the_file_is_named_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    write_sealed(file, CONTENT)
    whole = file.read_bytes()
    for place in [*range(100), len(whole) // 2, len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        caplog.clear()
        assert read_sealed(file) is None
        assert caplog.messages == [f"{file} is damaged: it is ignored, and made again"]


def test_a_named_pipe_in_its_place_is_as_damaged_and_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    assert read_sealed(tmp_path / "file") is None
    write_sealed(tmp_path / "file", CONTENT)
    assert read_sealed(tmp_path / "file") == CONTENT


@pytest.mark.parametrize("content", [b"", b"{}", CONTENT])
def test_a_file_without_a_seal_is_as_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert read_sealed(tmp_path / "file") is None


def test_a_file_in_anothers_place_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_sealed(file, CONTENT, "run a")
    assert read_sealed(file, "run a") == CONTENT
    assert read_sealed(file, "run b") is None
    assert read_sealed(file) is None


LINES = [
    (errno.ENOSPC, "No space left on device; make room there"),
    (errno.EDQUOT, "Disk quota exceeded; make room there"),
    (errno.EACCES, "Permission denied; allow writing there, or choose another folder"),
    (errno.EROFS, "Read-only file system; allow writing there, or choose another folder"),
    (errno.ENOTDIR, "Not a directory; move away what is there, or choose another folder"),
    (errno.EIO, "Input/output error"),
]


@pytest.mark.parametrize(("code", "end"), LINES)
def test_the_line_names_file_reason_and_what_to_do(code: int, end: str) -> None:
    assert disk_line(OSError(code, os.strerror(code), "runs/a")) == f"cannot use runs/a: {end}"


@pytest.mark.parametrize("file", ["a\nb\x1b[1m", "x" * 5000, b"\xff", 3])
def test_the_line_is_short_and_printable_whatever_the_file(file: object) -> None:
    name = file if isinstance(file, str | bytes) else str(file)
    line = disk_line(OSError(errno.EIO, "bad", name))
    assert line.isprintable()
    assert len(line) < 400


def test_sockets_and_pipes_are_not_of_the_disk() -> None:
    assert not is_of_disk(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert not is_of_disk(ConnectionResetError(errno.ECONNRESET, "reset"))
    with pytest.raises(BrokenPipeError), refused_by_disk():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    with pytest.raises(UserError, match="cannot use a: Is a directory"), refused_by_disk():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", "a")


def test_the_reason_is_found_behind_what_libraries_raise() -> None:
    rust = ValueError("I/O error: No space left on device (os error 28)")
    for error in (rust, OSError(errno.ENOSPC, "No space left on device")):
        with pytest.raises(OSError, match="No space") as found, named_errors(Path("state.pt")):
            raise error
        assert (found.value.errno, found.value.filename) == (errno.ENOSPC, "state.pt")
    with pytest.raises(RuntimeError, match="kind"), named_errors(Path("state.pt")):
        raise RuntimeError("of another kind")


VALUES = {"a": [1, 2, 3], "b": {"2": 0.1 + 0.2, "c": None}, "d": "ü", "e": 1e300}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "f.json", VALUES)
    return tmp_path / "f.json"


def test_what_was_written_comes_back(file: Path) -> None:
    assert read_json(file) == VALUES
    assert json.loads(file.read_text()) == VALUES


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000, b"{}x"])
def test_what_is_no_object_is_one_line(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(UserError, match="is damaged") as refusal:
        read_json(file)
    assert "\n" not in str(refusal.value)


def test_a_file_of_an_older_version_is_read_without_its_checksum(file: Path) -> None:
    file.write_text('{"a": 1, "checksum": "0"}')
    assert read_json(file) == {"a": 1}


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Is a directory"):
        read_json(tmp_path)


def test_a_damaged_file_is_named_where_it_can_be_done_without(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(file.read_bytes()[:-3])
    assert read_json_if_whole(file) is None
    assert str(file) in caplog.text
    assert read_json_if_whole(file.with_name("none.json")) is None


def test_what_json_has_no_word_for_is_null(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_json(file, {"loss": [1.5, float("nan")], "deep": {"far": float("-inf")}})
    assert "NaN" not in file.read_text()
    assert read_json(file) == {"loss": [1.5, None], "deep": {"far": None}}
