"""JSON that is read again: whole or refused, whatever happened to its bytes."""

import json
from pathlib import Path

import pytest

from fl.errors import UserError
from fl.json_files import read_json, read_json_if_whole, write_json

VALUES = {"a": [1, 2, 3], "b": {"2": 0.1 + 0.2, "c": None}, "d": "ü", "e": 1e300}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "f.json", VALUES)
    return tmp_path / "f.json"


def test_what_was_written_comes_back(file: Path) -> None:
    assert read_json(file) == VALUES
    assert json.loads(file.read_text()) == VALUES


def test_numbers_as_keys_come_back_as_words(tmp_path: Path) -> None:
    write_json(tmp_path / "f.json", {10: 0.5, 9: (1, 2)})
    assert read_json(tmp_path / "f.json") == {"10": 0.5, "9": [1, 2]}


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
