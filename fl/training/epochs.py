"""The common parts of client trainings that go over a client's samples in epochs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from fl.federation import Batch, RunSpec, TaskInput, Training, Update
from fl.json_files import JsonObject
from fl.training.batches import cut, smallest_batch
from fl.training.recipe import Epoch


class LocalTraining:
    """Methods of :class:`fl.federation.Training`, for dataclasses that do not say otherwise."""

    __dataclass_fields__: ClassVar[JsonObject]

    @property
    def first_round(self: Training) -> Training:
        """See :class:`fl.federation.Training`: the first round is as all others."""
        return self

    def check_upload(self, update: Update, run_spec: RunSpec) -> None:
        """Whatever passes the checks of all uploads."""

    def speed_settings(self) -> Mapping[str, object]:
        """All settings but those of how long it trains and at which rate, which change no step's
        memory or time."""
        others = "epochs", "steps", "stop", "lr"
        return {n: v for n, v in asdict(self).items() if n not in others}


class EpochTraining(LocalTraining):
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
    the ``model`` that is trained, no batch is smaller than it needs: see
    :func:`fl.training.batches.cut`.

    Batches hold ``images`` (B, C, H, W), augmented if the data says so, and ``labels`` (B,); with
    ``latent`` also ``noise`` (B, latent), from N(0, 1), and of each of the ``columns``, which have
    a row for each of the shard's samples, those of the batch; and what is ``asked`` of its samples.
    """
    device, shard = inputs.device, inputs.shard
    rows = {"labels": shard.wanted, **(columns or {})}
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
