"""A file is there whole, or as it was before."""

from pathlib import Path

import pytest

from fl.whole_files import replacing, write_atomically


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
