"""Images made from classifiers alone: what DENSE and Co-Boosting do before they distil.

A generator and its input are trained so that the clients' ensemble takes the images for the classes
they are meant to be. The terms of that loss are here too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import MOST, AtLeast, AtMost, Count, NotNegative, Positive, Settings, Width, Within
from fl.errors import UserError
from fl.federation import Batch, RunSpec
from fl.fusion.fit import DecayedFitConfig
from fl.json_files import JsonObject
from fl.models.common import AnyBatchNorm, ImageShape, divisible, scaled
from fl.seeding import seeded, torch_generator
from fl.training.losses import divergences
from fl.training.optimizers import Adam
from fl.training.recipe import Step, minimise
from fl.training.steps import on_device

# Distillation on a pool of images that grows from epoch to epoch: DENSE's and Co-Boosting's.


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(Settings):
    """The global model's training on the pool: SGD, one pass per epoch."""

    epochs: Count = 30
    """Epochs; each makes one batch of images."""
    lr: Positive = 0.01
    """Learning rate of SGD."""
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    """Momentum of SGD."""
    weight_decay: NotNegative = 0.0
    """Weight decay of SGD."""
    batch_size: Count = 16
    """Samples per step."""
    temperature: Positive = 20.0
    """Temperature T of the distillation, whose loss is multiplied by T squared."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate schedule over the epochs: constant, or falling along a half cosine."""
    clip: Positive | None = None
    """Norm to which the global model's gradient is cut. Default: none."""

    def fit_config(self) -> "PoolFitConfig":
        """The settings of the server's fit."""
        shared = {name: value for name, value in vars(self).items() if name != "temperature"}
        return PoolFitConfig(optimizer="sgd", **shared)


@dataclass(frozen=True, kw_only=True)
class PoolFitConfig(DecayedFitConfig):
    """A fit whose rate is the same for all steps of an epoch."""

    def total_steps(self, rows: int) -> int:
        """Steps of the whole fit on a pool that gains so many samples in each epoch."""
        sizes = (rows * epoch for epoch in range(1, self.epochs + 1))
        return sum(-(-size // self.batch_size) for size in sizes)

    def rate(self, epoch: int, passed: float) -> float:
        """Learning rate in an epoch."""
        return super().rate(epoch, 0.0)


@dataclass(frozen=True)
class DistillationLoss:
    """T^2 KL(teacher || student) of ``images`` and ``teacher_logits``, mean over the batch."""

    temperature: float

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        student = model(batch["images"])
        return divergences(batch["teacher_logits"], student, self.temperature).mean()


class Pool:
    """All images made so far, with labels and whatever else a method adds for each."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.columns: dict[str, Tensor] = {}
        """Rows of one length, by name; ``images`` and ``labels`` are two."""

    def add(self, **rows: Tensor) -> None:
        """Appends rows to every column."""
        for name, new in rows.items():
            old = self.columns.get(name)
            self.columns[name] = new if old is None else torch.cat([old.to(new.device), new])

    def batches(self, purpose: str, epoch: int, size: int) -> Iterator[dict[str, Tensor]]:
        """All rows once, shuffled by (seed, purpose, epoch)."""
        order = torch_generator(self._seed, f"{purpose}/{epoch}")
        labels = self.columns["labels"]
        for rows in torch.randperm(len(labels), generator=order).to(labels.device).split(size):
            yield {name: column[rows] for name, column in self.columns.items()}

    def described(self, **figures: Any) -> JsonObject:
        """Fields of an :class:`fl.server.Outcome` about the images; none is filtered out."""
        count = len(self.columns["labels"])
        synthetic = {name: self.columns[name] for name in ("images", "labels")}
        return {
            "synthetic": {**synthetic, "kept": torch.arange(count)},
            "figures": {"synthetic": {"generated": count, "kept": count}, **figures},
        }


DEVIATION = 0.02  # of initial weights, as is usual for GANs


class ImageGenerator(nn.Module):
    """DENSE's and Co-Boosting's (Zhang et al., NeurIPS 2022): images (B, C, H, W) in [0, 1] of z.

    z is (B, latent), without class labels. A fully connected layer makes a quarter-size map of 128
    channels, which two nearest-neighbour enlargements with 3x3 convolutions (128 and 64 channels)
    bring to the image's size. ``width`` multiplies channels; 1 is the released code's.

    Raises:
        UserError: a side of the images is not divisible by 4.
    """

    def __init__(self, image_shape: ImageShape, latent: int = 256, width: float = 1.0) -> None:
        super().__init__()
        check_image_generator(image_shape)
        channels, height, image_width = image_shape
        wide, narrow = scaled(128, width), scaled(64, width)
        smallest = (wide, height // 4, image_width // 4)
        self.layers = nn.Sequential(
            nn.Linear(latent, wide * smallest[1] * smallest[2]),
            nn.Unflatten(1, smallest),
            nn.BatchNorm2d(wide),
            *_enlarge(wide, wide),
            *_enlarge(wide, narrow),
            nn.Conv2d(narrow, channels, 3, padding=1),
            nn.Sigmoid(),
        )
        self.apply(_drawn)

    def forward(self, z: Tensor) -> Tensor:
        """Images (B, C, H, W) of z (B, latent)."""
        return self.layers(z)


def check_image_generator(image_shape: ImageShape) -> None:
    """Raises `UserError` if there is no generator for images of this shape."""
    if not divisible(image_shape, 4):
        raise UserError(f"the image generator needs sides divisible by 4, got {image_shape}")


def _enlarge(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return (
        nn.Upsample(scale_factor=2),
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.2),
    )


def _drawn(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, 0.0, DEVIATION)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, DEVIATION)


BETAS = (0.5, 0.999)
"""Adam's betas, as in the released codes."""
InversionLoss = Callable[[Tensor, Tensor], Tensor]
"""Function of images (B, C, H, W) and the labels (B,) they are meant to have: a scalar."""


@dataclass(frozen=True, kw_only=True)
class InversionConfig(Settings):
    """Training of the generator, new in each epoch."""

    batch_size: Annotated[int, AtLeast(2), AtMost(MOST)] = 64  # BatchNorm needs two
    """Images made per epoch."""
    steps: Count = 20
    """Steps of Adam on the generator and its input."""
    lr: Positive = 1e-3
    """Learning rate of Adam."""
    latent: Count = 256
    """Size of the generator's input z."""
    width: Width = 0.25
    """Factor on the generator's channels; 1 is the released code's."""


def invert(
    loss: InversionLoss,
    run_spec: RunSpec,
    config: InversionConfig,
    *,
    epoch: int,
    device: torch.device,
    clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The images of the step whose loss was lowest, (B, C, H, W), and their labels (B,), uniform.

    Generator, input and labels start anew from (seed, epoch). ``clip``: norm to which the
    generator's gradient is cut.
    """
    with seeded(run_spec.seed, f"inversion/{epoch}"):
        generator = ImageGenerator(run_spec.image_shape, config.latent, config.width).to(device)
        z = torch.randn(config.batch_size, config.latent).to(device).requires_grad_()
        labels = torch.randint(run_spec.num_classes, (config.batch_size,)).to(device)
    generator.train()
    parameters = [*generator.parameters(), z]
    best = Lowest()

    def steps() -> Iterator[Step]:
        for _ in range(config.steps):
            images = generator(z)
            value = loss(images, labels)
            best.add(value.detach(), images.detach())
            yield Step(value)

    def cut() -> None:
        if clip is not None:
            nn.utils.clip_grad_norm_(generator.parameters(), clip)

    optimizer = Adam(config.lr, BETAS).for_cohort([parameters])
    minimise(steps(), [parameters], optimizer, cut)
    return best.images, labels


class Lowest:
    """The images of the lowest loss so far, found on the device; the first ones if none is lower,
    as where the first loss is NaN."""

    images: Tensor

    def __init__(self) -> None:
        self._loss: Tensor | None = None

    def add(self, loss: Tensor, images: Tensor) -> None:
        """Adds a step's loss, a scalar, and its images (B, C, H, W)."""
        if self._loss is None:
            self._loss, self.images = loss, images
            return
        is_lower = loss < self._loss
        self._loss = torch.where(is_lower, loss, self._loss)
        self.images = torch.where(is_lower, images, self.images)


def boundary_support(student: Tensor, teacher: Tensor) -> Tensor:
    """-mean(1[the two disagree] KL(teacher || student)) of logits (B, classes), a scalar.

    Falls as the samples lie between the two models' decision boundaries.
    """
    disagree = student.argmax(1) != teacher.argmax(1)
    return -(disagree * divergences(teacher, student)).mean()


def crop_and_flip(images: Tensor, stream: torch.Generator, padding: int = 4) -> Tensor:
    """Each image shifted by up to ``padding`` pixels over black, and mirrored half of the time."""
    count, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, count, 1), generator=stream)
    mirrored = torch.randint(2, (count, 1), generator=stream).bool()
    across = torch.arange(width)
    columns = left + torch.where(mirrored, across.flip(0), across)
    rows, columns = on_device([top + torch.arange(height), columns], images.device)
    padded = F.pad(images, [padding] * 4)
    each = torch.arange(count, device=images.device)[:, None, None]
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class BatchNormDistance:
    """How far a batch lies from what models' BatchNorm layers saw in training.

    ``value`` sums ||mean - running mean||_2 + ||var - running var||_2 over a model's layers and
    averages over the models; 0 where no such layer keeps statistics. It is of the last pass.
    """

    def __init__(self, models: nn.ModuleList) -> None:
        self._layers: list[AnyBatchNorm] = [
            module
            for module in models.modules()
            if isinstance(module, AnyBatchNorm) and module.running_mean is not None
        ]
        self._models = len(models)
        self._distances: dict[AnyBatchNorm, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator["BatchNormDistance"]:
        """Inside the context the layers' inputs are measured in each forward pass."""
        handles = [layer.register_forward_pre_hook(self._note) for layer in self._layers]
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    @property
    def value(self) -> Tensor | float:
        """The distance of the last batch, a scalar."""
        return sum(self._distances.values(), start=0.0) / self._models

    def _note(self, layer: Any, inputs: tuple[Tensor, ...]) -> None:
        others = [d for d in range(inputs[0].dim()) if d != 1]
        var, mean = torch.var_mean(inputs[0], others, correction=0)
        distance = (mean - layer.running_mean).norm() + (var - layer.running_var).norm()
        self._distances[layer] = distance
