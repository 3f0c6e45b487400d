"""Settings of how a client condenses its data; with shard and seed they determine its upload."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal, Self

import torch

from fl.bounds import Count, OneOf, Positive, Settings, Width, Within
from fl.condensation.augment import KINDS
from fl.federation import RunSpec, Task, Update
from fl.models import CLASSIFIERS, check_classifier
from fl.plausible import WHY
from fl.receiving import sent
from fl.training.features import check_head

MOST_PIXEL = 100.0
"""What a condensed pixel stays far below at a rate of 1 or less, though nothing holds it between 0
and 1; above that it grows with the rate."""


@dataclass(frozen=True, kw_only=True)
class CondensationConfig(Settings):
    """Learning of condensed images by distribution matching, sized for a laptop."""

    model: Annotated[str, OneOf(CLASSIFIERS)] = "convnet"
    """Architecture of the global model, whose features are matched: convnet, resnet18, cnn or
    vgg9."""
    width: Width = 0.25
    """Factor on its channels and hidden units; 1 is the paper's size."""
    images_per_class: Count = 10
    """Condensed images of each class the client has, however few its samples are (IPC)."""
    min_samples: Count = 1
    """Classes of which the client has fewer samples are left out."""
    steps: Count = 50
    """Steps of SGD on the images."""
    lr: Positive = 0.1
    """Image learning rate, for pixels in [0, 1]."""
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    """Momentum of SGD."""
    batch_size: Count = 32
    """Real samples of each class per step; a class with fewer repeats them."""
    init: Literal["average", "noise"] = "average"
    """Start of the images: averages of random local ones of their class, or noise."""
    averaged: Count = 5
    """Local images in each of those averages; 1 starts from real images."""
    network: Literal["train", "eval"] = "train"
    """Mode of the network: train normalises by the statistics of the step's batch, of all classes
    together; eval by the global model's running ones."""
    augment: tuple[Annotated[str, OneOf(KINDS)], ...] = ()
    """Differentiable augmentations, of which each step draws one for real and condensed images
    alike: brightness, contrast, saturation, shift, scale, rotate, flip, cutout."""
    pixels: Literal["float", "uint8"] = "float"
    """How images are uploaded; uint8 rounds them to 8 bits, as the paper counts them."""

    def check_upload(self, update: Update, run_spec: RunSpec) -> None:
        """Raises `ValueError` unless it holds condensed images of some of the classes."""
        images, classes = sent(update, "images"), sent(update, "classes")
        sender = f"client {update.client.id}"
        possible = sorted(set(classes.flatten().tolist()) & set(range(run_spec.num_classes)))
        if classes.dtype != torch.int64 or classes.tolist() != possible:
            raise ValueError(f"{sender} sent impossible classes {classes.tolist()}")
        shape = (len(classes) * self.images_per_class, *run_spec.image_shape)
        dtype = torch.uint8 if self.pixels == "uint8" else torch.float32
        if images.shape != shape or images.dtype != dtype:
            raise ValueError(
                f"{sender} sent images as {images.dtype} {tuple(images.shape)}, "
                f"expected {dtype} {shape}"
            )
        if not images.isfinite().all():
            raise ValueError(f"{sender} sent images with NaN or infinite values")
        most = MOST_PIXEL * max(1.0, self.lr)
        if images.is_floating_point() and len(images) and float(images.abs().max()) > most:
            raise ValueError(f"{sender} sent images with pixels above {most:g}: {WHY}")


@dataclass(frozen=True, kw_only=True)
class LocalCondensation(CondensationConfig):
    """A client's training record: the shared settings, and those that single methods add."""

    clip: float | None = None
    """Norm to which the gradient of all images together is cut; None for none."""
    gamma: float = 1.0
    """Share of the global model in each step's network; the rest is a fresh random one."""
    rho: float = 0.0
    """Radius around the global model within which each step's network is drawn, at width 1; 0 for
    none."""
    collaboration: float = 0.0
    """Weight of the sliced Wasserstein distance between the images' class-wise mean logits and
    those that the server sent."""
    projections: int = 0
    """Random directions of that distance; 0 for its closed form."""
    temperature: float = 1.0
    """Temperature of the soft labels that the client uploads."""

    @classmethod
    def of(cls, shared: CondensationConfig, **own: float | None) -> Self:
        """The record with these shared settings and the method's own."""
        return cls(**vars(shared), **own)  # type: ignore[arg-type]

    @property
    def task(self) -> Task:
        """The task that such a client runs; its module imports this one, hence the late import."""
        from fl.condensation.task import condense

        return condense

    @property
    def first_round(self) -> Self:
        """See :class:`fl.federation.Training`: the first round is as all others."""
        return self

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` if the model cannot take such images, or has no features to match."""
        check_classifier(self.model, run_spec.image_shape, run_spec.num_classes, width=self.width)
        check_head("condensation", self.model, self.width, run_spec)

    def work(self, num_samples: int) -> int:
        """Samples passed through the model if each step saw all of the client's."""
        return self.steps * num_samples

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """The record with so many steps, and the samples of a step, which sees all classes."""
        return replace(self, steps=steps), num_classes * self.batch_size

    def speed_settings(self) -> Mapping[str, object]:
        """All settings but steps and learning rate, which change no step's memory or time."""
        return {n: v for n, v in asdict(self).items() if n not in ("steps", "lr")}

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """Bytes of the images as float32, with all classes."""
        images = run_spec.num_classes * self.images_per_class
        return 4 * images * math.prod(run_spec.image_shape)
