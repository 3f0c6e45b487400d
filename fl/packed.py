"""Packed messages: safetensors bytes in memory or mapped into it, whose header is checked first."""

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl.json_values import JsonObject
from fl.memory import let_go
from fl.whole_files import no_pipe

PIECE_BYTES = 16 << 20
"""Of a large message, what is in this process's memory at once while it is handed on."""
MOST_HEADER_BYTES = 16 << 20
MOST_NAME = 200
MOST_DIMENSIONS = 8
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Types of tensors that clients and server send, by safetensors' name."""


@dataclass(frozen=True, eq=False)
class Packed:
    """A packed message: in this process's memory, or mapped into it from where it lies."""

    content: memoryview
    mapped: bool = False
    """Whether it lies in a file or in shared memory, so that pages that were read can be let go."""

    @classmethod
    def in_memory(cls, packed: bytes) -> "Packed":
        """The bytes of :func:`fl.wire.pack`."""
        return cls(memoryview(packed))

    @classmethod
    def in_file(cls, path: Path) -> "Packed":
        """A file with such bytes.

        Raises:
            OSError: it cannot be read.
            ValueError: it is empty.
        """
        with no_pipe(path).open("rb") as file:
            there = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls(memoryview(there), mapped=True)

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in order, of which no more than a piece stays in memory if it is mapped."""
        for first in range(0, len(self.content), PIECE_BYTES):
            piece = self.content[first : first + PIECE_BYTES]
            yield piece
            if self.mapped:
                let_go(piece)

    def __bytes__(self) -> bytes:
        copy = bytes(self.content)
        if self.mapped:
            let_go(self.content)
        return copy


@dataclass(frozen=True)
class Form:
    """What a packed tensor looks like, and where its bytes lie after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Bytes of its data."""
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """What stands before the tensors' bytes."""

    forms: Mapping[str, Form]
    note: JsonObject
    size: int
    """Bytes until the tensors' data."""

    @classmethod
    def of(cls, content: bytes | memoryview) -> "Header":
        """The header of a packed message, which may come from anyone.

        Raises:
            ValueError: it is not what :func:`fl.wire.pack` makes; says why.
        """
        size = int.from_bytes(content[:8], "little")
        if len(content) < 8 or size > min(MOST_HEADER_BYTES, len(content) - 8):
            raise ValueError("no packed tensors: the header is longer than the message or 16 MiB")
        values = _json(bytes(content[8 : 8 + size]), "the header")
        metadata = values.pop("__metadata__", None)
        if not isinstance(metadata, dict) or not isinstance(metadata.get("note"), str):
            raise ValueError("no packed tensors: without a note")
        forms = {name: _form(name, about) for name, about in values.items()}
        _refuse_gaps(forms, len(content) - 8 - size)
        return cls(forms, _json(metadata["note"], "the note"), 8 + size)


class PackedTensors(Mapping[str, Tensor]):
    """A packed message's tensors, each copied out of it when it is asked for."""

    def __init__(self, packed: Packed) -> None:
        """Raises `ValueError` as :meth:`Header.of`."""
        self._packed = packed
        self.header = Header.of(packed.content)

    @property
    def forms(self) -> Mapping[str, Form]:
        """What the tensors look like; none is read for it."""
        return self.header.forms

    def __getitem__(self, name: str) -> Tensor:
        form = self.header.forms[name]
        first = self.header.size
        if not form.num_bytes:
            return torch.empty(form.shape, dtype=form.dtype)
        there = self._packed.content[first + form.begin : first + form.end]
        return self._copied(there, form.dtype).view(form.shape)

    def parts(self, name: str) -> Iterator[Tensor]:
        """The tensor's values, flat, of which no more than a piece is in memory at once."""
        form = self.header.forms[name]
        first = self.header.size + form.begin
        for begin in range(first, first + form.num_bytes, PIECE_BYTES):
            there = self._packed.content[begin : min(begin + PIECE_BYTES, first + form.num_bytes)]
            yield self._copied(there, form.dtype)

    def _copied(self, there: memoryview, dtype: torch.dtype) -> Tensor:
        copy = bytearray(there)
        if self._packed.mapped:
            let_go(there)
        return torch.frombuffer(copy, dtype=dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.header.forms)

    def __len__(self) -> int:
        return len(self.header.forms)


def without_sharing(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the host, contiguous, each with memory of its own, as safetensors needs it."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        found[name] = own.clone() if place in seen else own
        seen.add(place)
    return found


def _json(text: str | bytes, what: str) -> JsonObject:
    constants: list[str] = []  # NaN and infinities, which JSON does not have and Python reads
    try:
        values = json.loads(text, parse_constant=constants.append)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{what} cannot be read: {error}") from None
    if constants:
        raise ValueError(f"{what} holds {constants[0]}")
    if not isinstance(values, dict):
        raise ValueError(f"{what} holds no names")
    return values


def _form(name: str, about: Any) -> Form:
    if len(name) > MOST_NAME or not name.isprintable():
        raise ValueError(f"a tensor's name has {len(name)} characters, or some that cannot be read")
    if not isinstance(about, dict):
        raise ValueError(f"{name} is no tensor")
    dtype: Any = about.get("dtype")
    shape: Any = about.get("shape")
    offsets: Any = about.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{name} is of a type that nobody sends: {str(dtype)[:20]}")
    if not _whole(shape) or len(shape) > MOST_DIMENSIONS or not _whole(offsets, 2):
        raise ValueError(f"{name} has an impossible shape or place")
    form = Form(DTYPES[dtype], tuple(shape), *offsets)
    if form.num_bytes != prod(shape) * form.dtype.itemsize:
        raise ValueError(f"{name} is said to be {shape}, with {form.num_bytes} bytes")
    return form


def _whole(values: Any, count: int | None = None) -> bool:
    """Whether they are a list of whole numbers from 0 on, of that count."""
    return (
        isinstance(values, list)
        and count in (None, len(values))
        and all(type(value) is int and 0 <= value < 2**62 for value in values)
    )


def _refuse_gaps(forms: Mapping[str, Form], size: int) -> None:
    """Raises `ValueError` unless the tensors fill the message's data, one after the other."""
    reached = 0
    for form in sorted(forms.values(), key=lambda form: (form.begin, form.end)):
        if form.begin != reached:
            raise ValueError("no packed tensors: they overlap, or there are gaps between them")
        reached = form.end
    if reached != size:
        raise ValueError(f"no packed tensors: they take {reached} bytes of {size}")
