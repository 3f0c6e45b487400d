"""Images learned from the path of a global model: DynaFed's matching of trajectories.

A model that trains on the images from one point of the path is to come out where the path went on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl.bounds import Count, OneOf, Positive, Settings
from fl.condensation.augment import KINDS, draw_augmentation
from fl.exchange import Tensors
from fl.seeding import torch_generator
from fl.training.optimizers import Adam, Parts
from fl.training.recipe import Step, minimise

AHEAD = 3
"""Points of the path after a start, of which the target is made."""


@dataclass(frozen=True, kw_only=True)
class MatchingConfig(Settings):
    """Learning of the images; the defaults are those of DynaFed's code."""

    images_per_class: Count = 15
    """Images of each class."""
    iterations: Count = 3000
    """Paths that are matched, one after the other."""
    inner_steps: Count = 20
    """Steps of SGD on all images, from a point of the path."""
    image_lr: Positive = 0.05
    """Rate of Adam for the images."""
    label_lr: Positive = 0.01
    """Rate of Adam for the soft labels' logits."""
    inner_lr: Positive = 0.04
    """Rate of the inner steps at the start; it is learned too."""
    inner_lr_lr: Positive = 1e-5
    """Rate of Adam for that rate."""
    augment: tuple[Annotated[str, OneOf(KINDS)], ...] = ("shift", "scale", "rotate", "cutout")
    """Augmentations, of which one is drawn for each inner step, the same for all images."""


def match_trajectory(
    model: nn.Module,
    path: Sequence[Tensors],
    config: MatchingConfig,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Images and soft labels that lead a model along its path.

    Args:
        model: the architecture, on the device to compute on.
        path: the model's states, one per round, the first before round 1; more than ``AHEAD``.
        config: how they are learned.
        image_shape: of one image.
        num_classes: classes.
        seed: the run's.

    Returns:
        Images (N, C, H, W), and labels (N, classes) that sum to 1.

    Raises:
        ValueError: the path is too short.
    """
    if len(path) <= AHEAD:
        raise ValueError(f"a path of {AHEAD + 1} models or more is needed, got {len(path)}")
    stream = torch_generator(seed, "trajectory")
    device, count = next(model.parameters()).device, num_classes * config.images_per_class
    images = torch.randn(count, *image_shape, generator=stream).to(device).requires_grad_()
    logits = torch.zeros(count, num_classes, device=device, requires_grad=True)
    rate = torch.tensor(config.inner_lr, device=device, requires_grad=True)
    parts = [[images], [logits], [rate]]
    rates = (config.image_lr, config.label_lr, config.inner_lr_lr)

    def steps() -> Iterator[Step]:
        for _ in range(config.iterations):
            drawn = _draw(path, stream)
            start, target = ({n: t.to(device) for n, t in state.items()} for state in drawn)
            augmented = [
                draw_augmentation(config.augment, stream) for _ in range(config.inner_steps)
            ]
            end = _train(model, start, images, logits.softmax(1), rate, augmented)
            yield Step(_distance(model, start, end, target), (0, 1, 2))

    minimise(steps(), parts, Parts([Adam(rate) for rate in rates], parts))
    return images.detach(), logits.detach().softmax(1)


def _draw(path: Sequence[Tensors], stream: torch.Generator) -> tuple[Tensors, Tensors]:
    """A point of the path, and the mean of two or three of the next ones, drawn with repetition."""
    at = int(torch.randint(len(path) - AHEAD, (), generator=stream))
    count = int(torch.randint(2, 4, (), generator=stream))
    ahead = torch.randint(1, AHEAD + 1, (count,), generator=stream).tolist()
    states = [path[at + step] for step in ahead]
    mean = {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        for name, tensor in path[at].items()
    }
    return path[at], mean


def _train(
    model: nn.Module,
    start: Tensors,
    images: Tensor,
    labels: Tensor,
    rate: Tensor,
    augmented: Sequence[Callable[[Tensor], Tensor]],
) -> Tensors:
    """The parameters after a step of SGD for each augmentation, as a function of the images."""
    names = [name for name, _ in model.named_parameters()]
    buffers = {name: tensor.clone() for name, tensor in start.items() if name not in names}
    weights = {name: start[name].detach().requires_grad_() for name in names}
    for change in augmented:
        logits = functional_call(model, {**weights, **buffers}, (change(images),))
        loss = -(labels * logits.log_softmax(1)).mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        moved = zip(weights.items(), gradients, strict=True)
        weights = {name: w - rate * gradient for (name, w), gradient in moved}
    return weights


def _distance(model: nn.Module, start: Tensors, end: Tensors, target: Tensors) -> Tensor:
    """|end - target|^2 / |start - target|^2 over all parameters."""
    names = [name for name, _ in model.named_parameters()]
    missed = sum((end[n] - target[n]).square().sum() for n in names)
    whole = sum((start[n] - target[n]).square().sum() for n in names)
    return torch.as_tensor(missed) / torch.as_tensor(whole)
