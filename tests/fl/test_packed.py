"""Packed messages: only what we make is read, whoever sent it; a mapped one is read lean."""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl import packed as module
from fl.packed import DTYPES, Header, Packed, PackedTensors
from fl.wire import pack
from tests.fl.toy import same_bits

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "c": torch.ones(0)}
NOTE = {"seconds": 1.5, "stats": {"loss": 2.0}}


def message() -> bytes:
    return pack(TENSORS, NOTE)


@pytest.mark.parametrize("mapped", [False, True])
def test_tensors_and_note_are_read_as_they_were_packed(tmp_path: Path, mapped: bool) -> None:
    (tmp_path / "m").write_bytes(message())
    packed = Packed.in_file(tmp_path / "m") if mapped else Packed.in_memory(message())
    tensors = PackedTensors(packed)
    assert same_bits(dict(tensors), TENSORS)
    assert tensors.header.note == NOTE
    assert bytes(packed) == message()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_type_that_is_sent_is_read(dtype: torch.dtype) -> None:
    sent = {"t": torch.tensor([0, 1, 1]).to(dtype)}
    assert same_bits(dict(PackedTensors(Packed.in_memory(pack(sent, {})))), sent)


def changed(change: Callable[[dict[str, Any]], None], *, more: bytes = b"") -> bytes:
    """The message with another header."""
    content = message()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :] + more


def put(name: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(values)


REFUSED = {
    "nothing": (b"", "header is longer"),
    "a long header": ((2**63).to_bytes(8, "little") + b"{}", "header is longer"),
    "no JSON": (b"\x04\0\0\0\0\0\0\0oops", "cannot be read"),
    "no text": (b"\x02\0\0\0\0\0\0\0\xff\xfe", "cannot be read"),
    "a list": (b"\x02\0\0\0\0\0\0\0[]", "holds no names"),
    "deep": ((400_000).to_bytes(8, "little") + b"[" * 400_000, "nested too deeply"),
    "a pickle": (b"\x80\x04K*." + bytes(20), "header is longer"),
    "no note": (changed(lambda h: h.pop("__metadata__")), "without a note"),
    "a note of NaN": (pack({}, {"seconds": float("nan")}), "the note holds NaN"),
    "another type": (changed(put("a", dtype="C64")), "type that nobody sends"),
    "a negative side": (changed(put("a", shape=[-2, -3])), "impossible shape"),
    "a huge side": (changed(put("a", shape=[2**62, 2])), "impossible shape"),
    "another size": (changed(put("a", shape=[2, 4])), "is said to be"),
    "a shape of words": (changed(put("a", shape=["2", "3"])), "impossible shape"),
    "no place": (changed(put("a", data_offsets=None)), "impossible shape or place"),
    "bytes left over": (changed(lambda h: None, more=b"x"), "bytes of"),
    "an overlap": (changed(put("b", data_offsets=[0, 2])), "overlap"),
    "a number": (changed(lambda h: h.update(d=3)), "is no tensor"),
    "a name of control characters": (changed(lambda h: h.update({"\x1b[2J": h["c"]})), "name has"),
    "a long name": (changed(lambda h: h.update({"n" * 300: h["c"]})), "name has 300"),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_packed_message_is_refused_with_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PackedTensors(Packed.in_memory(content))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_is_done_to_a_message_it_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(message())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    try:
        tensors = dict(PackedTensors(Packed.in_memory(bytes(content[:cut]))))
    except ValueError:
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


def test_the_parts_of_a_tensor_are_its_values_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 16)
    tensors = PackedTensors(Packed.in_memory(message()))
    parts = [part.tolist() for part in tensors.parts("a")]
    assert parts == [[0, 1, 2, 3], [4, 5]]
    assert [*tensors.parts("c")] == []


def test_an_empty_file_is_no_message(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        Packed.in_file(tmp_path / "empty")


def test_the_header_of_a_large_message_is_read_without_its_data() -> None:
    content = memoryview(message())
    forms = Header.of(content).forms
    assert {name: form.num_bytes for name, form in forms.items()} == {"a": 24, "b": 2, "c": 0}


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_of_a_message_in_a_file_a_piece_at_a_time_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 2 << 20)
    content = torch.arange(4 << 20).to(torch.uint8).numpy().tobytes() * 4
    (tmp_path / "large").write_bytes(content)
    packed, before = Packed.in_file(tmp_path / "large"), mapped_bytes()
    together = bytearray()
    for piece in packed.pieces():
        together += piece
        assert mapped_bytes() - before <= 3 << 20  # of 16
    assert together == content == bytes(packed)
    assert mapped_bytes() - before <= 1 << 20


def mapped_bytes() -> int:
    """Of this process's memory, what is mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))
