"""Sealed files: read as they were written, or named and taken for missing."""

import os
from pathlib import Path

import pytest

from fl.whole_files import read_sealed, sealed, write_sealed

CONTENT = b"what a run wrote\n" * 100


def test_what_was_written_is_read_and_its_folder_is_made(tmp_path: Path) -> None:
    file = tmp_path / "not" / "there" / "file"
    assert read_sealed(file) is None
    with sealed(file) as writer:
        for first in range(0, len(CONTENT), 7):
            writer.write(CONTENT[first : first + 7])
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


def test_a_whole_file_stays_until_the_next_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_sealed(file, CONTENT)
    with pytest.raises(OSError, match="No space"):
        half_written(file)
    assert read_sealed(file) == CONTENT
    assert list(tmp_path.iterdir()) == [file]


def half_written(file: Path) -> None:
    with sealed(file) as writer:
        writer.write(b"half of i")
        raise OSError(28, "No space left on device")


def test_a_file_in_anothers_place_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with sealed(file, "run a") as writer:
        writer.write(CONTENT)
    assert read_sealed(file, "run a") == CONTENT
    assert read_sealed(file, "run b") is None
    assert read_sealed(file) is None
