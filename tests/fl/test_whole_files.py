"""A file is there whole, or as it was before."""

from pathlib import Path

import pytest

from fl.errors import UserError
from fl.whole_files import read_text, replacing, write_atomically


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
