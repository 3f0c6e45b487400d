"""The common parts of client trainings that go over a client's samples in epochs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import ClassVar, Self

import torch

from fl.federation import TaskInput
from fl.json_values import JsonObject
from fl.training.recipe import Epoch


class EpochTraining:
    """Methods of :class:`fl.federation.Training`, for dataclasses with these settings."""

    __dataclass_fields__: ClassVar[JsonObject]
    epochs: int
    lr: float
    batch_size: int

    def work(self, num_samples: int) -> int:
        """Samples passed through the model."""
        return self.epochs * num_samples

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """The training with one epoch, and the samples of ``steps`` batches."""
        return replace(self, epochs=1), steps * self.batch_size

    def speed_settings(self) -> Mapping[str, object]:
        """All settings but epochs and learning rate, which change no step's memory or time."""
        return {n: v for n, v in asdict(self).items() if n not in ("epochs", "lr")}


def epochs_of(
    inputs: TaskInput, config: EpochTraining, *, latent: int | None = None
) -> Iterator[Epoch]:
    """Each epoch's batches: the shard's samples in a new order, cut into batches.

    Batches hold ``images`` (B, C, H, W) and ``labels`` (B,); with ``latent`` also ``noise``
    (B, latent), from N(0, 1).
    """
    device = inputs.device
    images, labels = inputs.shard.images.to(device), inputs.shard.labels.to(device)
    order, noise = inputs.stream("local/order"), inputs.stream("local/latent")

    def batches() -> Epoch:
        shuffled = torch.randperm(len(labels), generator=order).to(device)
        for positions in shuffled.split(config.batch_size):
            batch = {"images": images[positions], "labels": labels[positions]}
            if latent is not None:
                drawn = torch.randn(len(positions), latent, generator=noise)
                batch["noise"] = drawn.to(device)
            yield batch

    return (batches() for _ in range(config.epochs))
