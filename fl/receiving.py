"""What a client sent is checked before any of it is stored or used: form, note, values, and use.

Whether a training can have made it is for the training record to say (:mod:`fl.plausible`).

What is refused raises `ValueError`. The reason that :func:`receive` gives begins with a verb, such
as ``sent classifier.conv.weight with NaN``: its caller names the client.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from fl.exchange import PIECE_BYTES, Form, Message, Upload
from fl.federation import Job, RunSpec, Update
from fl.plausible import ANSWERS, LARGEST_ANSWER, VARIANCE, WHY, extent
from fl.process import threads

Value = TypeVar("Value")
Check = Callable[[Update, RunSpec], object]
"""Raises `ValueError` for an update that its method could not use."""

LARGEST = 1e9
"""The largest value of a float of which nothing else is known."""


def receive(
    job: Job,
    upload: Upload,
    check: Check | None = None,
    *,
    private: bool = False,
    began: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Checks what a job's client sent.

    Args:
        job: what it was asked.
        upload: what came back; nothing of it is believed.
        check: what the method needs of it; what it does not look at is refused.
        private: whether all of it stays with the client.
        began: by name, the largest magnitude of what the client was sent, or remembered.

    Returns:
        The largest magnitude in each tensor of floats, all of which are finite.

    Raises:
        ValueError: the first thing that is wrong with it.
    """
    small = len(upload.content) <= PIECE_BYTES
    try:
        # Passes over a small one are shorter than it takes to wake another thread.
        with threads(1 if small else torch.get_num_threads()):
            stats = upload.note.stats
            tensors = dict(upload) if small else upload  # copied once, for all checks
            largest = _largest(upload, tensors)
            if check:
                update = Update(
                    client=job.client,
                    tensors=tensors,
                    stats=stats,
                    seconds=0.0,
                    reused=False,
                    private=private,
                    largest=largest,
                    began=began or {},
                )
                _check_all(update, upload, check, job.run_spec)
    except (ValueError, RuntimeError) as error:  # RuntimeError: torch, of tensors that do not fit
        reason = " ".join(str(error).split())[:300]
        raise ValueError(reason.removeprefix(f"client {job.client.id} ")) from None
    return largest


def _largest(upload: Upload, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Checks all values; see :func:`receive`."""
    largest = dict[str, float]()
    for name, form in upload.forms.items():
        parts = upload.parts(name) if tensors is upload else [tensors[name]]
        found = [check_values(name, part) for part in parts if part.numel()]
        if form.dtype.is_floating_point:
            largest[name] = max(found, default=0.0)
    return largest


def _check_all(update: Update, upload: Upload, check: Check, run_spec: RunSpec) -> None:
    """By what the method needs of it; raises `ValueError` also for what that does not look at."""
    seen = set[str]()
    looked = LookedAt(update.tensors, seen)
    looked.forms = LookedAt(upload.forms, seen)
    check(replace(update, tensors=looked), run_spec)
    others = sorted(upload.keys() - seen)
    if others and seen:  # who looks at none says nothing of which there may be
        raise ValueError(f"sent what nobody asked for: {', '.join(others[:5])}")


def largest_values(message: Message) -> dict[str, float]:
    """By name, the largest magnitude of each tensor of floats in what was checked, or is ours."""
    floats = [name for name, form in message.forms.items() if form.dtype.is_floating_point]
    # Python's own max would lose a NaN.
    return {n: float(torch.tensor([0.0, *map(extent, message.parts(n))]).max()) for n in floats}


class LookedAt(Mapping[str, Value]):
    """The same mapping; ``seen`` gets the names whose value a check takes.

    To go through the names, or to ask whether there is one, takes no value.
    """

    forms: "LookedAt[Form]"
    """Of tensors, as of :class:`fl.exchange.Message`."""

    def __init__(self, values: Mapping[str, Value], seen: set[str]) -> None:
        self._values, self._seen = values, seen

    def __getitem__(self, name: str) -> Value:
        value = self._values[name]
        self._seen.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def check_values(name: str, tensor: Tensor) -> float:
    """Finite, of a size that there can be, and not negative where nothing negative can be.

    Returns:
        The largest magnitude.
    """
    if tensor.dtype == torch.bool:
        return 0.0
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    low, high = (float(end) for end in torch.aminmax(tensor))
    if not abs(low) < torch.inf or not abs(high) < torch.inf:
        raise ValueError(f"sent {name} with NaN or infinite values: {WHY}")
    most = LARGEST_ANSWER if name.endswith(ANSWERS) else LARGEST
    if tensor.is_floating_point() and max(-low, high) > most:
        raise ValueError(
            f"sent {name} with values up to {max(-low, high):.3g}, above {most:g}: {WHY}"
        )
    if name.endswith((VARIANCE, ".num_batches_tracked")) and low < 0:
        raise ValueError(f"sent a negative {name}: {low:g}")
    return max(-low, high)


def check_label_counts(update: Update, run_spec: RunSpec) -> Tensor:
    """The client's samples per class, (classes,) int64; as many in all as it has."""
    counts = sent(update, "label_counts", (run_spec.num_classes,), torch.int64)
    size, listed = update.client.num_samples, counts.tolist()
    if min(listed) < 0 or sum(listed) != size:  # Python's sum does not overflow
        sender = f"client {update.client.id}"
        raise ValueError(f"{sender} sent impossible label counts {listed}: it has {size}")
    return counts


def sent(
    update: Update,
    name: str,
    shape: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The tensor of that name and, with a shape, of that form.

    Raises:
        ValueError: there is none, or it is of another shape or type.
    """
    if name not in update.tensors:
        raise ValueError(f"client {update.client.id} sent no {name}")
    tensor = update.tensors[name]
    if shape is not None and (tensor.shape != shape or tensor.dtype != dtype):
        raise ValueError(
            f"client {update.client.id} sent {name} as {tensor.dtype} {tuple(tensor.shape)}, "
            f"expected {dtype} {shape}"
        )
    return tensor


def check_probabilities(rows: Tensor, name: str) -> None:
    """Rows of probabilities over classes, (n, classes)."""
    if float(rows.min()) < 0 or float((rows.sum(1) - 1).abs().max()) > 1e-3:
        raise ValueError(f"sent {name} that are no probabilities")
