"""DynaFed (Pi et al., CVPR 2023): FedAvg whose server learns images from its first rounds.

After some rounds of FedAvg the server learns a few images on which a model takes the path that the
global model took: one that trains on them from one point of the path is to come out where the path
went on. From then on it trains the average on them in every round, without anything
further from the clients.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl.bounds import MOST, AtLeast, AtMost, Count, OneOf, Positive, Settings
from fl.condensation.images import KINDS, draw_augmentation
from fl.exchange import Tensors
from fl.federation import Batch, RunSpec
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.methods.averaging import Averaging, averaging_method
from fl.methods.method import Assignment, LogUniform
from fl.methods.prototypes import ParticipationConfig, assign_all
from fl.seeding import in_round, seeded, torch_generator
from fl.training.classifier import ClassifierConfig
from fl.training.optimizers import Adam, Parts
from fl.training.recipe import Step, minimise

AHEAD = 3
"""Points of the path after a start, of which the target is made."""
REFRESHED = 3
"""Passes over the images by which BatchNorm's statistics are renewed before they are trained on."""


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


@dataclass(frozen=True, kw_only=True)
class DynaFedConfig(ParticipationConfig, Settings):
    """DynaFed's settings: FedAvg's, and the images."""

    classifier: ClassifierConfig = ClassifierConfig(epochs=2, lr=0.01, momentum=0.0, batch_size=32)
    trajectory: Annotated[int, AtLeast(AHEAD), AtMost(MOST)] = 24
    """Rounds of FedAvg before the images are learned, once."""
    matching: MatchingConfig = MatchingConfig()
    fit: FitConfig = FitConfig(epochs=20, lr=1e-4, batch_size=256)


def run(frame: Averaging, config: DynaFedConfig) -> None:
    """Algorithm 1: rounds of FedAvg with a plain mean, then with the images' training after it."""
    server, (model,) = frame.server, frame.model.values()
    memory: dict[str, Tensor] = _point(model, 0)
    for _ in frame.play(memory):
        if server.round <= config.trajectory:
            memory |= _point(model, server.round)
            continue
        if "images" not in memory:
            with server.events.phase("synthesis"):
                learned = learn_images(model, memory, config, server.run_spec)
            memory.clear()  # the path is needed no longer
            memory |= learned
        with server.events.phase("fusion"):
            train_on_images(model, memory, server, config)


def _point(model: nn.Module, number: int) -> dict[str, Tensor]:
    """The model's state as a point of the path, by round."""
    return {f"path.{number}.{n}": t.clone() for n, t in model.state_dict().items()}


def learn_images(
    model: nn.Module, memory: Tensors, config: DynaFedConfig, run_spec: RunSpec
) -> dict[str, Tensor]:
    """``images`` (N, C, H, W) and ``labels`` (N, classes) that lead along the memory's path."""
    path: Sequence[Tensors] = [
        {name: memory[f"path.{number}.{name}"] for name in model.state_dict()}
        for number in range(config.trajectory + 1)
    ]
    with seeded(run_spec.seed, "trajectory/dropout"):
        images, labels = match_trajectory(model.train(), path, config.matching, run_spec)
    return {"images": images, "labels": labels}


def match_trajectory(
    model: nn.Module, path: Sequence[Tensors], config: MatchingConfig, run_spec: RunSpec
) -> tuple[Tensor, Tensor]:
    """Images and soft labels that lead a model along its path.

    Args:
        model: the architecture, on the device to compute on.
        path: the model's states, one per round, the first before round 1; more than ``AHEAD``.
        config: how they are learned.
        run_spec: the run's.

    Returns:
        Images (N, C, H, W), and labels (N, classes) that sum to 1.
    """
    stream, num_classes = torch_generator(run_spec.seed, "trajectory"), run_spec.num_classes
    device, count = next(model.parameters()).device, num_classes * config.images_per_class
    images = torch.randn(count, *run_spec.image_shape, generator=stream).to(device).requires_grad_()
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


def train_on_images(model: nn.Module, data: Batch, server: Server, config: DynaFedConfig) -> None:
    """Renews BatchNorm's statistics on the images, and trains the model on them."""
    images = data["images"].to(server.device)
    model.train()
    purpose = in_round("refresh/dropout", server.round)
    with torch.no_grad(), seeded(server.run_spec.seed, purpose):
        for _ in range(REFRESHED):
            model(images)
    server.fit(model, data, loss=soft_entropy, config=config.fit, stage="fusion", tested=False)


def soft_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy with soft labels: the mean over samples of -sum_c t_c log s_c."""
    logits = model(batch["images"])
    return -(batch["labels"] * logits.log_softmax(1)).sum(1).mean()


def assign(config: DynaFedConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Classifiers at all clients, of images: the server learns such along the models' path."""
    _ = run_spec.image_shape  # refuses other samples
    return assign_all(config, num_clients, run_spec)


METHOD = averaging_method(
    "dynafed",
    DynaFedConfig,
    run,
    server={"fit.lr": LogUniform(1e-5, 1e-2)},
    assign=assign,
    default_ranks=1,
)
