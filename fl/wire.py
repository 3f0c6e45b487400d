"""Messages between client and server: tensors as safetensors bytes, never pickles, with a note."""

import json
from collections.abc import Callable, ItemsView, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fl.json_values import JsonObject
from fl.models.state import load_sent, state_sent
from fl.packed import Form, Header, Packed, PackedTensors, without_sharing

Tensors = dict[str, Tensor]
MOST_COUNT_BYTES = 1024
"""Larger tensors of whole numbers are not held: there may be as many as clients."""


def num_bytes(tensors: Tensors) -> int:
    """Bytes of the tensors' data, which count as communication."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def pack(tensors: Tensors, note: JsonObject) -> bytes:
    """Serialises tensors with a JSON note, which does not count as communication."""
    return save(without_sharing(tensors), metadata={"note": json.dumps(note)})


def unpack(packed: bytes) -> tuple[Tensors, JsonObject]:
    """Inverse of :func:`pack`. The tensors are in the message's order: safetensors would give them
    in another one in each process, and what draws for them in turn would draw other numbers."""
    tensors = PackedTensors(Packed.in_memory(packed))
    return dict(tensors.items()), tensors.header.note


class StoredTensors(Mapping[str, Tensor]):
    """Packed tensors in a file, mapped into memory each time one is asked for, and not held.

    ``counts`` are some of them that are held: a server asks all clients for these before it reads
    any weights, when thousands of files have long left the system's memory.
    """

    def __init__(self, path: Path, counts: Tensors | None = None) -> None:
        self._path = path
        self._counts = counts or {}

    @property
    def forms(self) -> Mapping[str, Form]:
        """What the tensors look like; none is read for it."""
        return self._opened().forms

    def __getitem__(self, name: str) -> Tensor:
        if name in self._counts:
            return self._counts[name].clone()
        return self._opened()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())

    def items(self) -> ItemsView[str, Tensor]:
        """All tensors by one reading, since a deep model has hundreds."""
        return dict(self._opened().items()).items()

    def _opened(self) -> PackedTensors:
        return PackedTensors(Packed.in_file(self._path))


def counts_in(packed: Packed) -> Tensors:
    """The message's small tensors of whole numbers, such as label counts."""
    tensors = PackedTensors(packed)
    return {
        name: tensors[name]
        for name, form in tensors.header.forms.items()
        if form.dtype == torch.int64 and form.num_bytes <= MOST_COUNT_BYTES
    }


def unpack_note(packed: bytes | memoryview) -> JsonObject:
    """The note alone, without unpacking the tensors.

    Raises:
        ValueError: it is no packed message.
    """
    return Header.of(packed).note


class Visible(Mapping[str, Tensor]):
    """Some of a mapping's tensors: those whose name passes."""

    def __init__(self, tensors: Mapping[str, Tensor], passes: Callable[[str], bool]) -> None:
        self._tensors, self._passes = tensors, passes

    def __getitem__(self, name: str) -> Tensor:
        if not self._passes(name):
            raise KeyError(name)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._tensors if self._passes(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> ItemsView[str, Tensor]:
        """Those tensors by one reading; see :class:`StoredTensors`."""
        return {n: t for n, t in self._tensors.items() if self._passes(n)}.items()


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

    Raises:
        ValueError: a name is missing or left over, or a shape, type or value is not what is
            expected of it; the message names ``sender``.
    """
    check_forms(expected, tensors, prefix, sender)
    received = {name: tensors[f"{prefix}.{name}"] for name in expected}
    for name, tensor in received.items():
        if tensor.is_floating_point() and not _is_finite(tensor):
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


def _is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite: by the extremes, in one pass and without a copy."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())
