"""HFLDD's client training: a small data set distilled by kernel inducing points (KIP).

A few images of each class are changed until kernel ridge regression on them, with the tangent
kernel of a wide network, predicts the labels of the client's other images.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from fl.bounds import Count, Positive, Settings
from fl.condensation.nearest import as_bytes, nearest
from fl.data.shard import Shard
from fl.exchange import Tensors
from fl.federation import RunSpec, Task, TaskInput, TaskOutput, Update
from fl.training.optimizers import Adam
from fl.training.progress import report
from fl.training.recipe import StepLosses
from kernels import centred, predictions

SOLVED = 0.999
"""Accuracy on a batch of targets above which the released rule stops (FedD3's code)."""


@dataclass(frozen=True, kw_only=True)
class KipTraining(Settings):
    """Distillation of a client's images. It uploads ``images.CLASS`` of each class that it has.

    HFLDD's paper gives images, rate, steps, targets and ridge; the rest is FedD3's, whose very
    settings these are.
    """

    images: Count = 400
    """Distilled images of a client, in equal numbers of each of its classes; of a class no more
    than the client has."""
    lr: Positive = 0.004
    """Rate of Adam, in deviations of the client's pixels."""
    steps: Count = 3000
    """Steps at most."""
    targets: Count = 10
    """Real images of a step, in equal numbers of each of the client's classes; where that does not
    come out even, the first of a new order of the classes have one more."""
    ridge: Positive = 1e-6
    """Lambda; it is multiplied by the mean of the kernel's diagonal."""
    depth: Count = 4
    """Hidden layers of the network whose tangent kernel is taken."""
    stop: Literal["accuracy", "never"] = "accuracy"
    """accuracy: once a step's targets are predicted to more than 99.9 percent, the released rule.
    never: after all steps."""

    @property
    def model(self) -> str:
        """Name by which resources are set."""
        return "kip"

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return distil

    @property
    def first_round(self) -> Self:
        """See :class:`fl.federation.Training`: the first round is as all others."""
        return self

    def check(self, run_spec: RunSpec) -> None:
        """Any images can be distilled."""

    def work(self, num_samples: int) -> int:
        """Images that pass through the kernel."""
        return self.steps * (self.images + self.targets)

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """The same with so many steps, on as many samples as are distilled."""
        return replace(self, steps=steps, stop="never"), self.images + num_classes

    def speed_settings(self) -> Mapping[str, object]:
        """All settings but rate and steps, which change no step's memory or time."""
        return {n: v for n, v in asdict(self).items() if n not in ("lr", "steps", "stop")}

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """A byte for each value of a pixel."""
        return self.images * int(torch.Size(run_spec.image_shape).numel())

    def check_upload(self, update: Update, run_spec: RunSpec) -> None:
        """Raises `ValueError` unless it holds images by class."""
        checked_set(update.client.id, update.tensors, run_spec)


def distil(inputs: TaskInput) -> TaskOutput:
    """The client's distilled images, uint8 (n, C, H, W) by class.

    ``steps`` says how many were taken, ``nearest`` the mean over distilled images of the root mean
    square distance to the nearest real image of the class, in pixels' units from 0 to 1.
    """
    config, shard = inputs.client.training, inputs.shard
    assert isinstance(config, KipTraining)
    stream = inputs.stream("local/distilled")
    mean = shard.images.mean((0, 2, 3), keepdim=True)
    deviation = shard.images.std((0, 2, 3), keepdim=True)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    real = ((shard.images - mean) / deviation).double().to(inputs.device)
    chosen = _balanced(shard, config.images, stream, most_each=True)
    support = real[chosen].clone().requires_grad_(True)
    labels = centred(shard.labels, shard.num_classes).to(inputs.device)
    adam = Adam(config.lr).for_cohort([[support]])
    taken, solved, losses = 0, False, StepLosses()
    while taken < config.steps and not solved:
        taken += 1
        rows = _balanced(shard, config.targets, stream)
        told = predictions(
            support, labels[chosen], real[rows], ridge=config.ridge, depth=config.depth
        )
        support.grad = None
        loss = 0.5 * (told - labels[rows]).square().mean()
        loss.backward()
        losses.add(loss)
        report(inputs.client.id, taken, config.steps, loss.detach().item, "step")
        adam.step((0,))
        right = told.argmax(1) == labels[rows].argmax(1)
        solved = config.stop == "accuracy" and float(right.double().mean()) > SOLVED
    images = support.detach().cpu() * deviation + mean
    sent = _upload(as_bytes(images), shard.labels[chosen], shard, steps=taken)
    return replace(sent, losses=losses.curve)


def share_images(inputs: TaskInput) -> TaskOutput:
    """All of the client's real images in place of distilled ones: HFLDD without distillation."""
    shard = inputs.shard
    return _upload(as_bytes(shard.images), shard.labels, shard, steps=0)


def _upload(images: Tensor, labels: Tensor, shard: Shard, *, steps: int) -> TaskOutput:
    """By class, so that the names tell the labels and no byte is sent for them."""
    classes = labels.unique().tolist()
    tensors = {f"images.{c}": images[labels == c] for c in classes}
    real = {c: as_bytes(shard.images[shard.labels == c]) for c in classes}
    distances = torch.cat([nearest(tensors[f"images.{c}"], real[c])[0] for c in classes])
    stats = {"steps": float(steps), "nearest": float(distances.mean())}
    return TaskOutput(tensors=tensors, stats=stats)


def _balanced(
    shard: Shard, count: int, stream: torch.Generator, *, most_each: bool = False
) -> Tensor:
    """Indices of ``count`` samples, in equal numbers of each class that there is.

    ``most_each``: of no class more than it has, and none twice; else those over are of the first
    classes in a new order, and a class with too few samples repeats them.
    """
    classes = shard.labels.unique()
    order = classes[torch.randperm(len(classes), generator=stream)]
    found = []
    for place, label in enumerate(order.tolist()):
        share = count // len(order) + int(place < count % len(order))
        own = (shard.labels == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=stream)]
        if not most_each and share > len(own):
            own = own.repeat(-(-share // len(own)))
        found.append(own[:share])
    return torch.cat(found).sort().values


def joined(shard: Shard, sets: Mapping[str, Tensor]) -> Shard:
    """A shard, and the images that others sent after it: ``CLIENT.images.CLASS``, uint8, by
    client and class."""
    names = sorted(sets, key=lambda name: [int(part) for part in name.split(".images.")])
    images = [sets[name].float() / 255 for name in names]
    labels = [torch.full((len(sets[name]),), int(name.rpartition(".")[2])) for name in names]
    return Shard(
        torch.cat([shard.images, *images]), torch.cat([shard.labels, *labels]), shard.num_classes
    )


def checked_set(sender: int, tensors: Mapping[str, Tensor], run_spec: RunSpec) -> Tensors:
    """What a client sends another one, by the name that it has there.

    Raises:
        ValueError: it is not images by class.
    """
    found = {}
    for name, images in tensors.items():
        word, _, label = name.partition(".")
        is_class = word == "images" and label.isdecimal() and int(label) < run_spec.num_classes
        if not is_class or images.dtype != torch.uint8 or images.shape[1:] != run_spec.image_shape:
            raise ValueError(f"client {sender} sent {name}, which is no images of a class")
        found[f"{sender}.{name}"] = images
    if not found:
        raise ValueError(f"client {sender} sent no images")
    return found
