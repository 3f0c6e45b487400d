"""What clients and server send each other: tensors as safetensors bytes, with a note; no pickle.

A :class:`Message` is such bytes. An :class:`Upload` is a client's message with its
:class:`ClientNote`; one object goes from the executor to the store, and its header and note are
parsed once. What a method gets of it are :class:`StoredTensors`, once :mod:`fl.receiving` has
checked it.
"""

import json
import mmap
import reprlib
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fl.events import ClientEnd
from fl.json_files import JsonObject, SettingValues
from fl.models.common import load_sent, state_sent, without_sharing
from fl.process import let_go
from fl.whole_files import no_pipe

Tensors = dict[str, Tensor]
PIECE_BYTES = 16 << 20
"""Of a large message, what is in this process's memory at once while it is handed on."""
MOST_COUNT_BYTES = 1024
"""Larger tensors of whole numbers are not held: there may be as many as clients."""
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
MOST_SHARED = 2048
MOST_HELD_BYTES = 1 << 20
"""Tensors and bytes of the largest header that is held beside others: with more, those of a few
clients who lie would fill the memory."""
OPTIONAL = ("node", "device", "device_uuid", "assigned", "peak_bytes")
"""What may be null."""
RESERVED = {"event", "crc", *(field.name for field in fields(ClientEnd))}
"""Names that no figure may have: in ``metrics.jsonl`` figures stand beside the record's own."""
MOST_FIGURES = 10_000
MOST_CHARACTERS = 200
LARGEST_FIGURE = 1e30
"""What no second and no figure of a training comes near; NaN and infinities are not below it."""


def num_bytes(tensors: Tensors) -> int:
    """Bytes of the tensors' data, which count as communication."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def pack(tensors: Tensors, note: JsonObject) -> bytes:
    """Serialises tensors with a JSON note, which does not count as communication."""
    return save(without_sharing(tensors), metadata={"note": json.dumps(note)})


def unpack(packed: bytes) -> tuple[Tensors, JsonObject]:
    """Inverse of :func:`pack`. The tensors are in the message's order: safetensors would give them
    in another one in each process, and what draws for them in turn would draw other numbers."""
    message = Message(packed)
    return dict(message), message.header.note


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


Forms = Mapping[str, Form]


@dataclass(frozen=True)
class Header:
    """What stands before the tensors' bytes."""

    forms: Forms
    note: JsonObject

    @classmethod
    def of(cls, content: memoryview) -> Self:
        """The header of a packed message, which may come from anyone.

        Raises:
            ValueError: it is not what :func:`pack` makes; says why.
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
        note = _json(metadata["note"], "the note", "; a training that diverged reports such a loss")
        return cls(forms, note)


class Message(Mapping[str, Tensor]):
    """A packed message: bytes in this process's memory, or mapped into it from where they lie.

    Its header is parsed once, when something of it is first asked for, and then raises `ValueError`
    as :meth:`Header.of`. A tensor is copied out of the bytes when it is asked for.
    """

    def __init__(self, content: bytes | memoryview, *, mapped: bool = False) -> None:
        """``mapped``: whether it lies in a file or in shared memory, so that pages that were read
        can be let go."""
        self.content, self.mapped = memoryview(content), mapped

    @classmethod
    def in_file(cls, path: Path) -> Self:
        """The message in a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is empty.
        """
        with no_pipe(path).open("rb") as file:
            there = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls(memoryview(there), mapped=True)

    @cached_property
    def header(self) -> Header:
        """Forms and note."""
        return Header.of(self.content)

    @property
    def header_bytes(self) -> int:
        """What the message says, whether true or not."""
        return int.from_bytes(self.content[:8], "little")

    @property
    def forms(self) -> Forms:
        """What the tensors look like; none is read for it."""
        return self.header.forms

    @property
    def counts(self) -> Tensors:
        """The small tensors of whole numbers, such as label counts."""
        return {
            name: self[name]
            for name, form in self.forms.items()
            if form.dtype == torch.int64 and form.num_bytes <= MOST_COUNT_BYTES
        }

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in order, of which no more than a piece stays in memory if it is mapped."""
        for first in range(0, len(self.content), PIECE_BYTES):
            piece = self.content[first : first + PIECE_BYTES]
            yield piece
            if self.mapped:
                let_go(piece)

    def parts(self, name: str) -> Iterator[Tensor]:
        """The tensor's values, flat, of which no more than a piece is in memory at once."""
        form = self.forms[name]
        for begin in range(form.begin, form.end, PIECE_BYTES):
            yield self._copied(begin, min(begin + PIECE_BYTES, form.end), form.dtype)

    def tensor(self, form: Form) -> Tensor:
        """The tensor of that form and place; the header is not parsed for it.

        Raises:
            ValueError: the message ends before.
        """
        if not form.num_bytes:
            return torch.empty(form.shape, dtype=form.dtype)
        return self._copied(form.begin, form.end, form.dtype).view(form.shape)

    def _copied(self, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        first = 8 + self.header_bytes
        there = self.content[first + begin : first + end]
        if len(there) < end - begin:
            raise ValueError("no packed tensors: the message has been cut")
        copy = bytearray(there)
        if self.mapped:
            let_go(there)
        return torch.frombuffer(copy, dtype=dtype)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensor(self.forms[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)

    def __bytes__(self) -> bytes:
        copy = bytes(self.content)
        if self.mapped:
            let_go(self.content)
        return copy


@dataclass(frozen=True, kw_only=True)
class ClientNote:
    """Where a client trained, how long, and with how much memory: packed with its upload, and not
    counted in its bytes."""

    client: int = -1
    role: str = ""
    model: str = ""
    seconds: float
    """Seconds of training: this client's share of its cohort's, by its samples."""
    span: tuple[float, float] = (0.0, 0.0)
    """Begin and end of the cohort's training, on its machine's clock."""
    node: str | None = None
    device: str | None = None
    device_uuid: str | None = None
    assigned: dict[str, float] | None = None
    """What a scheduler gave the process."""
    peak_bytes: int | None = None
    """The client's share of its cohort's peak memory; None where that cannot be measured."""
    cohort: int = 1
    """Clients that trained as one computation with this one, itself included."""
    stats: dict[str, float] = field(default_factory=dict)
    """Figures that the task reports of the training."""
    losses: list[float] = field(default_factory=list)
    """The mean training loss of each epoch; of a training in steps, of equal parts of them."""

    @classmethod
    def of(cls, values: JsonObject) -> Self:
        """The note beside an upload, which may be an older one without some fields.

        Raises:
            ValueError: it is no valid note; clients are not trusted to send one.
        """
        names = {f.name for f in fields(cls)}
        given = {name: value for name, value in values.items() if name in names}
        _check_note(given)
        return cls(**given | {"span": tuple(given.get("span", (0.0, 0.0)))})

    def pack(self, tensors: Tensors) -> bytes:
        """The upload with this note."""
        return pack(tensors, vars(self))


class Upload(Message):
    """A client's message, of which nothing is believed: tensors, and its note."""

    followed = False
    """Whether the next one came with it."""

    @cached_property
    def note(self) -> ClientNote:
        """Checked: raises `ValueError` as :meth:`ClientNote.of`."""
        return ClientNote.of(self.header.note)


def of_cohort(contents: Iterable[bytes | memoryview], *, mapped: bool = False) -> list[Upload]:
    """The uploads of clients that trained together."""
    uploads = [Upload(content, mapped=mapped) for content in contents]
    for upload in uploads[:-1]:
        upload.followed = True
    return uploads


def readable_notes(uploads: Iterable[Upload]) -> list[ClientNote]:
    """The notes of those uploads that have one; what has none is refused when it is received."""
    notes = []
    for upload in uploads:
        with suppress(ValueError):
            notes.append(upload.note)
        if upload.header_bytes > MOST_HELD_BYTES:
            vars(upload).pop("header", None)  # is parsed again when the upload's turn has come
    return notes


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a message, mapped from its file each time some are asked for, and not held.

    Args:
        source: the file, or the message where there is none.
        forms: what is in it; all that its header names without it.
        counts: some of them that are held: a server asks all clients for these before it reads any
            weights, when thousands of files have long left the system's memory.
        finite: whether all floats have been checked to be finite.
    """

    def __init__(
        self,
        source: Path | Message,
        forms: Forms | None = None,
        counts: Tensors | None = None,
        *,
        finite: bool = False,
    ) -> None:
        self._source, self._counts, self.finite = source, counts or {}, finite
        self.forms = self._opened().forms if forms is None else forms

    def __getitem__(self, name: str) -> Tensor:
        form = self.forms[name]
        return self._counts[name].clone() if name in self._counts else self._opened().tensor(form)

    def read(self, names: Iterable[str]) -> Tensors:
        """These tensors by one opening, since a deep model has hundreds."""
        opened = self._opened()
        return {name: opened.tensor(self.forms[name]) for name in names}

    def items(self) -> ItemsView[str, Tensor]:
        """All tensors by one opening."""
        return self.read(self.forms).items()

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)

    def _opened(self) -> Message:
        return Message.in_file(self._source) if isinstance(self._source, Path) else self._source


def visible(forms: Forms, passes: Callable[[str], bool]) -> Forms:
    """Those whose name passes; one mapping in memory for all clients of an architecture."""
    seen = tuple((name, form) for name, form in forms.items() if passes(name))
    return _shared(seen) if len(seen) <= MOST_SHARED else dict(seen)


@lru_cache(maxsize=64)
def _shared(forms: tuple[tuple[str, Form], ...]) -> Forms:
    return dict(forms)


def prefixed(prefix: str, module: nn.Module) -> Tensors:
    """What is sent of a module's state, under ``prefix.``, ready to go beside other tensors."""
    return {f"{prefix}.{name}": t for name, t in state_sent(module).items()}


def load_prefixed(
    module: nn.Module, tensors: Mapping[str, Tensor], prefix: str, sender: str
) -> None:
    """Loads what :func:`prefixed` made, after checking it: see :func:`checked`."""
    load_sent(module, checked(state_sent(module), tensors, prefix, sender))


def checked(expected: Tensors, tensors: Mapping[str, Tensor], prefix: str, sender: str) -> Tensors:
    """Those of the tensors that have the prefix, without it; the sender is not trusted.

    Floats of an upload that was received are finite, and are not looked at again.

    Raises:
        ValueError: a name is missing or left over, or a shape, type or value is not what is
            expected of it; the message names ``sender``.
    """
    check_forms(expected, tensors, prefix, sender)
    names = {name: f"{prefix}.{name}" for name in expected}
    stored = tensors if isinstance(tensors, StoredTensors) else None
    found = stored.read(names.values()) if stored else tensors
    received = {name: found[full] for name, full in names.items()}
    for name, tensor in received.items() if not (stored and stored.finite) else ():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{sender} sent {prefix}.{name} with NaN or infinite values")
    return received


def check_forms(expected: Tensors, tensors: Mapping[str, Tensor], prefix: str, sender: str) -> None:
    """Names, shapes and types as :func:`checked`; of a packed message no tensor is read for it.

    Raises:
        ValueError: as :func:`checked`, but for values.
    """
    looks = getattr(tensors, "forms", tensors)
    received = {n[len(prefix) + 1 :]: looks[n] for n in looks if n.startswith(prefix + ".")}
    if received.keys() != expected.keys():
        odd = sorted(received.keys() ^ expected.keys())
        raise ValueError(f"{sender} sent other tensors than {prefix} has: {', '.join(odd[:5])}")
    for name, form in received.items():
        wanted = expected[name]
        if form.shape != wanted.shape or form.dtype != wanted.dtype:
            raise ValueError(
                f"{sender} sent {prefix}.{name} as {form.dtype} {tuple(form.shape)}, "
                f"expected {wanted.dtype} {tuple(wanted.shape)}"
            )


def _json(text: str | bytes, what: str, why: str = "") -> JsonObject:
    """``why``: a likely reason of a number that JSON does not have."""
    constants: list[str] = []  # NaN and infinities, which JSON does not have and Python reads
    try:
        values = json.loads(text, parse_constant=constants.append)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{what} cannot be read: {error}") from None
    if constants:
        raise ValueError(f"{what} holds {constants[0]}{why}")
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


def _refuse_gaps(forms: Forms, size: int) -> None:
    """Raises `ValueError` unless the tensors fill the message's data, one after the other."""
    reached = 0
    for form in sorted(forms.values(), key=lambda form: (form.begin, form.end)):
        if form.begin != reached:
            raise ValueError("no packed tensors: they overlap, or there are gaps between them")
        reached = form.end
    if reached != size:
        raise ValueError(f"no packed tensors: they take {reached} bytes of {size}")


def _check_note(note: SettingValues) -> None:
    """Raises `ValueError` for the first entry that is not what it should be."""
    given = {n: value for n, value in note.items() if value is not None or n not in OPTIONAL}
    given.setdefault("seconds", None)  # the one that there must be
    for name, fits in NOTE.items():
        if name in given and not fits(given[name]):
            raise ValueError(f"reports an impossible {name}: {reprlib.repr(given[name])}")
    for figure, value in chain(*(given.get(name, {}).items() for name in ("stats", "assigned"))):
        if not (_word(figure) and _number(value)):
            shown = f"{reprlib.repr(figure)} {reprlib.repr(value)}"
            raise ValueError(f"reports an impossible figure: {shown}")
    if taken := RESERVED & given.get("stats", {}).keys():
        raise ValueError(f"reports a figure by a name that is taken: {min(taken)}")


def _span(value: Any) -> bool:
    return _numbers(value) and len(value) == 2 and value[0] <= value[1]


def _count(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < 2**62


def _word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_CHARACTERS and value.isprintable()


def _figures(value: Any) -> bool:
    return isinstance(value, dict) and len(value) <= MOST_FIGURES


def _numbers(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and len(value) <= MOST_FIGURES and all(map(_number, value))
    )


def _number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < LARGEST_FIGURE
    )


NOTE: dict[str, Callable[[Any], bool]] = {
    "seconds": lambda value: _number(value) and value >= 0,
    "span": _span,
    **dict.fromkeys(("role", "model", "node", "device", "device_uuid"), _word),
    "client": _count(-1),
    "peak_bytes": _count(0),
    "cohort": _count(1),
    "stats": _figures,
    "assigned": _figures,
    "losses": _numbers,
}
"""What the entries of a client's note are."""
