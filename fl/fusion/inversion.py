"""Images made from classifiers alone: what DENSE and Co-Boosting do before they distil.

A generator and its input are trained so that the clients' ensemble takes the images for the classes
they are meant to be. The terms of that loss are here too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import MOST, AtLeast, AtMost, Count, Positive, Settings, Width
from fl.federation import RunSpec
from fl.fusion.distillation import kl_to_teacher
from fl.models.image_generator import ImageGenerator
from fl.models.layers import AnyBatchNorm
from fl.seeding import torch_seeded
from fl.training.loop import Step, minimise
from fl.training.optimizers import Adam

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
    with torch_seeded(run_spec.seed, f"inversion/{epoch}"):
        generator = ImageGenerator(run_spec.image_shape, config.latent, config.width).to(device)
        z = torch.randn(config.batch_size, config.latent).to(device).requires_grad_()
        labels = torch.randint(run_spec.num_classes, (config.batch_size,)).to(device)
    generator.train()
    parameters = [*generator.parameters(), z]
    lowest, best = torch.inf, torch.empty(0)

    def steps() -> Iterator[Step]:
        nonlocal lowest, best
        for _ in range(config.steps):
            images = generator(z)
            value = loss(images, labels)
            if value.item() < lowest or not len(best):
                lowest, best = value.item(), images.detach()
            yield Step(value)

    def cut() -> None:
        if clip is not None:
            nn.utils.clip_grad_norm_(generator.parameters(), clip)

    optimizer = Adam(config.lr, BETAS).for_cohort([parameters])
    minimise(steps(), [parameters], optimizer, cut)
    return best, labels


def boundary_support(student: Tensor, teacher: Tensor) -> Tensor:
    """-mean(1[the two disagree] KL(teacher || student)) of logits (B, classes), a scalar.

    Falls as the samples lie between the two models' decision boundaries.
    """
    disagree = student.argmax(1) != teacher.argmax(1)
    return -(disagree * kl_to_teacher(student, teacher)).mean()


def crop_and_flip(images: Tensor, stream: torch.Generator, padding: int = 4) -> Tensor:
    """Each image shifted by up to ``padding`` pixels over black, and mirrored half of the time."""
    count, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, count, 1), generator=stream)
    mirrored = torch.randint(2, (count, 1), generator=stream).bool()
    across = torch.arange(width)
    rows = (top + torch.arange(height)).to(images.device)
    columns = (left + torch.where(mirrored, across.flip(0), across)).to(images.device)
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
    def value(self) -> Tensor:
        """The distance of the last batch, a scalar."""
        return sum(self._distances.values(), start=torch.zeros(())) / self._models

    def _note(self, layer: Any, inputs: tuple[Tensor, ...]) -> None:
        others = [d for d in range(inputs[0].dim()) if d != 1]
        var, mean = torch.var_mean(inputs[0], others, correction=0)
        distance = (mean - layer.running_mean).norm() + (var - layer.running_var).norm()
        self._distances[layer] = distance
