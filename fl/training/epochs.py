"""Client trainings that go over a client's samples in epochs, and the batches of an epoch.

No batch is smaller than the model can be trained on. In training BatchNorm needs two values per
channel. A convolutional one has a value for each pixel of its map; one behind a linear layer, or on
a map of a single pixel as ResNet-18 has on images of 8 x 8, has one for each sample. For a model
with such a layer a last batch of one sample is joined to the batch before.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import Batch, TaskInput, Training
from fl.inputs import Inputs
from fl.models.registry import MODELS
from fl.models.shapes import AnyBatchNorm, Built, ModelInfo
from fl.training.recipe import Epoch


class EpochTraining(Training):
    """The methods of trainings with these settings."""

    epochs: int
    lr: float
    batch_size: int

    def work(self, num_samples: int) -> int:
        """Samples passed through the model."""
        return self.epochs * num_samples

    def steps(self, num_samples: int, least: int = 1) -> int:
        """Steps of the optimiser, of a client with so many samples, whose batches have ``least``
        and more: a smaller last one is part of that before it."""
        whole, rest = divmod(num_samples, self.batch_size)
        return self.epochs * max(1, whole + (rest >= least))

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """The training with one epoch, and the samples of ``steps`` batches."""
        return replace(self, epochs=1), steps * self.batch_size


def epochs_of(
    inputs: TaskInput,
    config: EpochTraining,
    model: nn.Module | None = None,
    *,
    latent: int | None = None,
    columns: Batch | None = None,
    asked: Callable[[Tensor], Batch] | None = None,
    order: str = "local/order",
) -> "Epochs":
    """Each epoch's batches: the shard's samples in a new order, cut into batches.

    ``order`` names the stream of the orders, for a client that trains several times a round. With
    the ``model`` that is trained, no batch is smaller than it needs: see :func:`cut`.

    Batches hold ``images`` (B, C, H, W), augmented if the data says so, and ``labels`` (B,); with
    ``latent`` also ``noise`` (B, latent), from N(0, 1), and of each of the ``columns``, which have
    a row for each of the shard's samples, those of the batch; and what is ``asked`` of its samples.
    """
    device, shard = inputs.device, inputs.shard
    rows = {"labels": shard.wanted, **(columns or {})}
    check_labels(rows["labels"], model, shard.num_classes)
    if not shard.varies:
        rows["images"] = shard.images
    rows = {name: column.to(device) for name, column in rows.items()}
    orders, noise = inputs.stream(order), inputs.stream("local/latent")
    readings = inputs.stream("local/readings")
    least = smallest_batch(model) if model is not None else 1

    def plan(device: torch.device) -> Iterator[tuple[Tensor, Tensor | None]]:
        shuffled = torch.randperm(len(rows["labels"]), generator=orders).to(device)
        for positions in cut(shuffled, config.batch_size, least):
            drawn = None
            if latent is not None:
                drawn = torch.randn(len(positions), latent, generator=noise)
            yield positions, drawn

    def batches() -> Epoch:
        for positions, drawn in plan(device):
            # The same as column[positions], in a quarter of the time.
            batch = {name: column.index_select(0, positions) for name, column in rows.items()}
            if shard.varies:
                batch["images"] = shard.batch(positions.cpu(), readings).to(device)
            if drawn is not None:
                batch["noise"] = drawn.to(device)
            yield {**batch, **asked(batch["images"])} if asked else batch

    planned = None if shard.varies else Planned(rows, config.batch_size, latent or 0, plan)
    return Epochs(config.epochs, batches, planned)


@dataclass
class Planned:
    """Batches as rows of columns, which whoever trains takes from them itself."""

    columns: Batch
    """All of the client's samples, (N, ...) each, on its device."""
    batch_size: int
    """Samples of a batch, at most."""
    latent: int
    """Length of a sample's ``noise``; 0 where there is none."""
    epoch: Callable[[torch.device], Iterator[tuple[Tensor, Tensor | None]]]
    """The next epoch's batches: their rows (B,), on that device, and their noise (B, latent) on the
    host."""


@dataclass
class Epochs:
    """An iterator over epochs that knows how many are left."""

    left: int
    begin: Callable[[], Epoch]
    planned: Planned | None = None
    """The same epochs; None where samples are read anew in each."""

    def __iter__(self) -> Iterator[Epoch]:
        return self

    def __next__(self) -> Epoch:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.begin()

    def __length_hint__(self) -> int:
        return self.left


def cut(order: Tensor, size: int, least: int = 1) -> Sequence[Tensor]:
    """The rows (N,) in batches of ``size``; a last one below ``least`` is joined to the one before.

    Raises:
        ValueError: there are fewer rows than ``least`` in all.
    """
    if len(order) < least:
        raise ValueError(
            f"has {len(order)} sample, but the model's BatchNorm needs {least} in a batch: leave "
            "such clients out of the partition, or take a model without it"
        )
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) < least:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def smallest_batch(model: nn.Module) -> int:
    """Samples that a batch needs so that the model, or each one of an ensemble, can be trained."""
    built = [vars(part).get("built_as") for part in model.modules()]
    return max((_smallest(MODELS[b.model], b) for b in built if isinstance(b, Built)), default=1)


def check_labels(labels: Tensor, model: nn.Module | None, num_classes: int) -> None:
    """Refuses labels, integers (N,), that are no class: some losses would be NaN, and some leave
    such samples out, as cross-entropy does those of -100.

    Args:
        labels: all that are trained on; others than such integers are left to the loss.
        model: what is trained, which may have a class more than there are, if it was built here.
        num_classes: of the data, where there is no model.

    Raises:
        UserError: names the label.
    """
    if labels.ndim != 1 or labels.is_floating_point() or not len(labels):
        return
    built = [vars(part).get("built_as") for part in model.modules()] if model is not None else []
    known = [b.num_classes for b in built if isinstance(b, Built)]
    classes = max(known) if known else num_classes if model is None else math.inf
    least, most = (int(label) for label in labels.aminmax())
    if least < 0 or most >= classes:
        end = "and more" if classes == math.inf else f"to {classes - 1}"
        raise UserError(f"label {least if least < 0 else most}; allowed: 0 {end}")


def smallest_batch_of(name: str, inputs: Inputs, num_classes: int, width: float) -> int:
    """The same of a classifier by name, which is built for it once in a process."""
    return _smallest(MODELS[name], Built(name, inputs, num_classes, width))


@lru_cache(maxsize=64)
@torch.no_grad()
def _smallest(info: ModelInfo, built: Built) -> int:
    """2 if a batch of one sample fails for want of values, else 1.

    A model of the user's is built as it is, others without values for their weights. (A pass on the
    device "meta" would need no memory either, but torch imports its compiler for it: 2.6 seconds.)
    """
    with torch.random.fork_rng(devices=[]):
        with torch.device("cpu" if info.source else "meta"):
            model = info.made(built.inputs, built.num_classes, built.width).train()
        if not info.source:
            if not any(isinstance(m, AnyBatchNorm) for m in model.modules()):
                return 1
            model = model.to_empty(device="cpu")
        try:
            for count in (2, 1):  # lazy layers take their form from the first
                model(built.inputs.zeros(count))
        except (Exception, SystemExit) as error:  # training will report all else
            return 2 if "more than 1 value per channel" in str(error) else 1
    return 1
