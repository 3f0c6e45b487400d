"""What a client sent is checked before any of it is stored or used: form, note, values, and use.

Whether a training can have made it is for the training record to say, by the functions for that
below. Their limits are wide: a training that learns stays far from all of them. Numbers that are
wrong and plausible pass; those are what robust aggregation is for (:mod:`fl.fusion.aggregation`).

What is refused raises `ValueError`. The reason that :func:`receive` gives begins with a verb, such
as ``sent classifier.conv.weight with NaN``: its caller names the client.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from math import inf, isfinite
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fl.exchange import PIECE_BYTES, Form, Message, Upload
from fl.federation import Job, RunSpec, Update
from fl.inputs import Inputs
from fl.models.common import AnyBatchNorm, state_sent
from fl.process import threads
from fl.targets import LARGEST_VALUE, Targets

Key = TypeVar("Key")
Value = TypeVar("Value")
Check = Callable[[Update, RunSpec], object]
"""Raises `ValueError` for an update that its method could not use."""

LARGEST = 1e9
"""The largest value of a float of which nothing else is known."""
LARGEST_ANSWER = 1e5
"""The largest value of a logit or feature, of which the server takes means."""
ANSWERS = ("logits", "features")
"""How the names of what models answer end."""
LARGEST_MOVE = 100.0
"""How far training moves a weight at most, beside the largest weight that it began with; where the
targets are values, a weight may have to become as large as these."""
WIDER = 10.0
"""BatchNorm's statistics are of features of earlier weights: the factor on those of the last."""
APART = 100.0
"""Factor on the median of a map's uploads above which a tensor's values are an outlier's."""
LEAST_APART = 50.0
LEAST_ANSWER_APART = 2e4
"""Values up to these are no outlier's, however small the others' are: a client with many samples
trains for long, and one with a single sample hardly at all. Adam's steps stay as long when there is
nothing left to learn: in FedMD the logits of a client with one class reached 3,300 in 36 rounds."""
DRAWS = 10
"""How often samples are drawn at most, until a model answers some."""
MEAN, VARIANCE = ".running_mean", ".running_var"
"""How the names of BatchNorm's statistics end."""
WHY = "its training diverged (lower the learning rate, or standardise the samples), or it lies"


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
    looked = _noting(update.tensors, seen)
    looked.forms = _noting(upload.forms, seen)
    check(replace(update, tensors=looked), run_spec)
    others = sorted(upload.keys() - seen)
    if others and seen:  # who looks at none says nothing of which there may be
        raise ValueError(f"sent what nobody asked for: {', '.join(others[:5])}")


def largest_values(message: Message) -> dict[str, float]:
    """By name, the largest magnitude of each tensor of floats in what was checked, or is ours."""
    floats = [name for name, form in message.forms.items() if form.dtype.is_floating_point]
    # Python's own max would lose a NaN.
    return {n: float(torch.tensor([0.0, *map(extent, message.parts(n))]).max()) for n in floats}


class Lazy(Mapping[Key, Value]):
    """Values that are read when they are asked for, since there may be many. To go through the
    keys, or to ask whether there is one, reads none."""

    forms: Mapping[Key, Form]
    """Of a message's tensors, as of :class:`fl.exchange.Message`."""

    def __init__(self, keys: Iterable[Key], read: Callable[[Key], Value]) -> None:
        """``read`` gives a key's value."""
        self._keys, self._read = dict.fromkeys(keys), read

    def __getitem__(self, key: Key) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        return self._read(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _noting(values: Mapping[str, Value], seen: set[str]) -> Lazy[str, Value]:
    """The same mapping; ``seen`` gets the names whose value a check takes."""

    def read(name: str) -> Value:
        seen.add(name)
        return values[name]

    return Lazy(values, read)


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
    if name.endswith((MEAN, VARIANCE)):  # of a table that is not standardised; see Trial
        most = LARGEST**2
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


# What a training can have made: of the weights it began with, alone and beside other clients'.


def extent(tensor: Tensor) -> float:
    """The largest magnitude of its values."""
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor.float())
    return max(-float(low), float(high))


def check_reach(
    update: Update,
    prefix: str,
    start: Mapping[str, float],
    reach: float = inf,
    targets: Targets | None = None,
) -> None:
    """What a training can have made of the weights that it began with.

    Nobody is blamed for what he was sent: in a later round the limit is relative to that.

    Args:
        update: of a client.
        prefix: before the names of its weights.
        start: by name, the largest magnitude of each weight's values that the seed gives.
        reach: how far the optimiser can move a weight.
        targets: what the model is to answer, where that is no class.
    """
    furthest = LARGEST_VALUE if targets and targets.kind == "values" else LARGEST_MOVE
    for weight, drawn in start.items():
        name = f"{prefix}.{weight}"
        began = update.began.get(name, drawn)
        most = began + min(reach, furthest + began)
        if (found := update.largest.get(name, 0.0)) > most:
            raise ValueError(f"sent {name} with values up to {found:.3g}, above {most:.3g}: {WHY}")


def extents(model: nn.Module) -> dict[str, float]:
    """By name, the largest magnitude of the values of each of the model's weights."""
    state = model.state_dict(keep_vars=True)
    return {n: extent(t.detach()) for n, t in state.items() if isinstance(t, nn.Parameter)}


def trial_inputs(inputs: Inputs) -> Tensor:
    """Four samples, of which no client can foresee the last two: of images black, white, noise and
    a soft picture; of others four at random."""
    asked = inputs.draw(4, _secret_stream())
    if inputs.is_image:
        coarse = torch.rand(1, inputs.shape[0], 4, 4, generator=_secret_stream())
        asked[:2] = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
        asked[3:] = F.interpolate(coarse, size=inputs.shape[1:], mode="bilinear")
    return asked


@torch.no_grad()
def askable(model: nn.Module, inputs: Inputs) -> Tensor:
    """Those of four such samples that a classifier, left in eval mode, answers before it is
    trained: one may divide by a sample's length or deviation, which can be 0."""
    device = next(model.parameters()).device
    for _ in range(DRAWS):
        asked = trial_inputs(inputs).to(device)
        with suppress(Exception):  # of the user's model
            finite = model.eval()(asked).flatten(1).isfinite().all(1)
            if finite.any():
                return asked[finite]
    return asked


@lru_cache(maxsize=8)
def trial_codes(latent: int) -> Tensor:
    """Latent codes that no client can foresee, (4, latent)."""
    return torch.randn(4, latent, generator=_secret_stream())


def _secret_stream() -> torch.Generator:
    """Another one in each process, so that who trains for the trial cannot pass it."""
    return torch.Generator().manual_seed(secrets.randbits(63))


class Trial:
    """A model without weights, with which those that were uploaded are tried."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval()
        self.expected = state_sent(model)
        self._reached: dict[str, float] = {}
        for name, layer in model.named_modules():
            if isinstance(layer, AnyBatchNorm) and layer.track_running_stats:
                layer.register_forward_pre_hook(partial(self._look, name))

    def _look(self, layer: str, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._reached[layer] = max(self._reached.get(layer, 0.0), extent(given[0]))

    @torch.no_grad()
    def check(self, update: Update, prefix: str, *asked: Tensor) -> None:
        """What the model answers is finite and of a size that there can be, and BatchNorm's
        statistics are of the size of the features that they are of."""
        self._reached.clear()
        state = {name: update.tensors[f"{prefix}.{name}"] for name in self.expected}
        answer = functional_call(self.model, state, asked)
        for layer, reached in self._reached.items():
            most = WIDER * (1 + reached)
            for end, limit in ((MEAN, most), (VARIANCE, most**2)):
                name = f"{prefix}.{layer}{end}"
                _check_statistic(update, name, limit, f"features up to {reached:.3g}")
        for part in answer if isinstance(answer, tuple) else (answer,):
            check_answer(part, most=_largest_answer(asked[0]))


def _check_statistic(update: Update, name: str, limit: float, features: str) -> None:
    limit += 2 * update.began.get(name, 0.0)
    if (found := update.largest.get(name, 0.0)) > limit:
        raise ValueError(
            f"sent {name} with values up to {found:.3g}, above {limit:.3g}, of {features}: {WHY}"
        )


@torch.no_grad()
def check_model(model: nn.Module, asked: Tensor) -> None:
    """Raises `ValueError` for a classifier that is not to be sent to anybody, left in eval mode;
    ``asked``: samples on its device."""
    if not all(t.isfinite().all() for t in state_sent(model).values()):
        raise ValueError("has NaN or infinite weights")
    check_answer(model.eval()(asked), "answers", most=_largest_answer(asked))


def outliers(uploads: Sequence[Mapping[str, float]]) -> dict[int, str]:
    """Which of one map's uploads hold values far beyond the others', by place, and why.

    Args:
        uploads: of clients with one training record; by name the largest magnitude of each tensor.
    """
    found: dict[int, str] = {}
    for name in {name for upload in uploads for name in upload}:
        root = 0.5 if name.endswith(VARIANCE) else 1.0
        sizes = {k: own[name] ** root for k, own in enumerate(uploads) if name in own}
        middle = sorted(sizes.values())[(len(sizes) - 1) // 2]
        least = LEAST_ANSWER_APART if name.endswith(ANSWERS) else LEAST_APART
        for k, size in sizes.items():
            if size > max(least, APART * middle):
                found[k] = (
                    f"sent {name} with values up to {size ** (1 / root):.3g}, where half of the "
                    f"clients stay below {middle ** (1 / root):.3g}: {WHY}"
                )
    return found


def _largest_answer(asked: Tensor) -> float:
    """The limit of answers; larger for floats above 1, as of a table that is not standardised."""
    return LARGEST_ANSWER * (max(1.0, extent(asked)) if asked.is_floating_point() else 1.0)


def check_answer(
    answer: Tensor,
    said: str = "sent weights with which the model answers",
    most: float = LARGEST_ANSWER,
) -> None:
    """What a model with the uploaded weights makes of a trial input."""
    if not isfinite(found := extent(answer)):
        raise ValueError(f"{said} NaN or infinite values: {WHY}")
    if found > most:
        raise ValueError(f"{said} values up to {found:.3g}, above {most:g}: {WHY}")
