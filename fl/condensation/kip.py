"""HFLDD's client training: a small data set distilled by kernel inducing points (KIP).

A few images of each class are changed until kernel ridge regression on them, with the tangent
kernel of a wide network, predicts the labels of the client's other images.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from fl.bounds import Count, Positive, Settings
from fl.condensation.images import as_bytes, nearest
from fl.data.shard import Shard
from fl.events import report
from fl.exchange import Tensors
from fl.federation import RunSpec, Task, TaskInput, TaskOutput, Training, Update
from fl.training.optimizers import Adam
from fl.training.steps import StepLosses, on_device
from kernels.kip import FLAWS, centred, predictions

SOLVED = 0.999
"""Accuracy on a batch of targets above which the released rule stops (FedD3's code)."""


@dataclass(frozen=True, kw_only=True)
class KipTraining(Training, Settings):
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

    def check(self, run_spec: RunSpec) -> None:
        """Any images can be distilled."""

    def work(self, num_samples: int) -> int:
        """Images that pass through the kernel."""
        return self.steps * (self.images + self.targets)

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """The same with so many steps, on as many samples as are distilled."""
        return replace(self, steps=steps, stop="never"), self.images + num_classes

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """A byte for each value of a pixel."""
        return self.images * int(torch.Size(run_spec.image_shape).numel())

    def check_upload(self, update: Update, run_spec: RunSpec) -> None:
        """Raises `ValueError` unless it holds images by class."""
        checked_set(update.client.id, update.tensors, run_spec)


TOGETHER = 16
"""Steps that a GPU takes before it is asked what they came to, since the host waits for that."""


class Stepped(NamedTuple):
    """What a step of a distillation came to, on its device."""

    loss: Tensor
    """() float64."""
    right: Tensor
    """Share of the targets whose class was predicted, () float64."""
    flaw: Tensor
    """A number of :data:`kernels.kip.FLAWS`, () int64."""


class Distilling:
    """One client's images while they are learned."""

    def __init__(self, inputs: TaskInput, config: KipTraining) -> None:
        shard, device = inputs.shard, inputs.device
        self._config, self._device = config, device
        self._together = 1 if device.type == "cpu" else TOGETHER
        self._stream = inputs.stream("local/distilled")
        self._own = [torch.nonzero(shard.labels == c).flatten() for c in shard.labels.unique()]
        self._mean = shard.images.mean((0, 2, 3), keepdim=True)
        deviation = shard.images.std((0, 2, 3), keepdim=True)
        self._deviation = torch.where(deviation > 0, deviation, 1.0)
        self._real = ((shard.images - self._mean) / self._deviation).double().to(device)
        self._labels = centred(shard.labels, shard.num_classes).to(device)
        self.chosen = balanced(self._own, config.images, self._stream, most_each=True)
        """Places of the real images that the distilled ones start from, int64 (n,)."""
        self._support = self._real[self.chosen].clone().requires_grad_(True)
        self._support_labels = self._labels[self.chosen]
        self._adam = Adam(config.lr).for_cohort([[self._support]])
        self._yielded = self._support.detach()  # the same memory, until steps are taken together
        self._is_solved = torch.zeros((), dtype=torch.bool, device=device)

    def steps(self) -> Iterator[Stepped]:
        """Each step up to the one that solves its targets, or up to the last.

        On a GPU a few more may be taken than are yielded; they change nothing of what was yielded.

        Raises:
            ValueError: a step has no prediction, as :data:`kernels.kip.FLAWS` says.
        """
        left = self._config.steps
        while left:
            found = self.take(min(self._together, left))
            flaws = torch.stack([step.flaw for step in found]).tolist()
            right = torch.stack([step.right for step in found]).tolist()
            for step, flaw, share in zip(found, flaws, right, strict=True):
                if flaw:
                    raise ValueError(FLAWS[flaw])
                yield step
                if self._config.stop == "accuracy" and share > SOLVED:
                    return
            left -= len(found)

    def take(self, count: int) -> list[Stepped]:
        """Takes so many steps. None of them waits for the device."""
        drawn = [balanced(self._own, self._config.targets, self._stream) for _ in range(count)]
        return [self._step(rows) for rows in on_device(drawn, self._device)]

    def _step(self, rows: Tensor) -> Stepped:
        config, support, wanted = self._config, self._support, self._labels[rows]
        answers, flaw = predictions(
            support, self._support_labels, self._real[rows], ridge=config.ridge, depth=config.depth
        )
        support.grad = None
        loss = 0.5 * (answers - wanted).square().mean()
        loss.backward()
        self._adam.step((0,))
        right = (answers.argmax(1) == wanted.argmax(1)).double().mean()
        if config.stop == "accuracy" and self._together > 1:
            self._yielded = torch.where(self._is_solved, self._yielded, support.detach())
            self._is_solved = self._is_solved | (right > SOLVED)
        return Stepped(loss.detach(), right, flaw)

    @property
    def images(self) -> Tensor:
        """The images after the last step that is yielded, (n, C, H, W) float64 on the CPU."""
        return self._yielded.cpu() * self._deviation + self._mean


def distil(inputs: TaskInput) -> TaskOutput:
    """The client's distilled images, uint8 (n, C, H, W) by class.

    ``steps`` says how many were taken, ``nearest`` the mean over distilled images of the root mean
    square distance to the nearest real image of the class, in pixels' units from 0 to 1.

    Raises:
        ValueError: as :meth:`Distilling.steps`.
    """
    config, shard = inputs.record(KipTraining), inputs.shard
    distilling, losses = Distilling(inputs, config), StepLosses()
    for taken, step in enumerate(distilling.steps(), start=1):
        losses.add(step.loss)
        report(inputs.client.id, taken, config.steps, step.loss.item, "step")
    labels = shard.labels[distilling.chosen]
    sent = _upload(as_bytes(distilling.images), labels, shard, steps=taken)
    return replace(sent, losses=losses.curve)


def share_images(inputs: TaskInput) -> TaskOutput:
    """All of the client's real images in place of distilled ones: HFLDD without distillation."""
    shard = inputs.shard
    return _upload(as_bytes(shard.images), shard.labels, shard, steps=0)


def _upload(images: Tensor, labels: Tensor, shard: Shard, *, steps: int) -> TaskOutput:
    """By class, so that the names say the labels and no byte is sent for them."""
    classes = labels.unique().tolist()
    tensors = {f"images.{c}": images[labels == c] for c in classes}
    real = {c: as_bytes(shard.images[shard.labels == c]) for c in classes}
    distances = torch.cat([nearest(tensors[f"images.{c}"], real[c])[0] for c in classes])
    stats = {"steps": float(steps), "nearest": float(distances.mean())}
    return TaskOutput(tensors=tensors, stats=stats)


def balanced(
    classes: Sequence[Tensor], count: int, stream: torch.Generator, *, most_each: bool = False
) -> Tensor:
    """Places of ``count`` samples, in equal numbers of each of the ``classes``: the places of their
    samples.

    ``most_each``: of no class more than it has, and none twice; else those over are of the first
    classes in a new order, and a class with too few samples repeats them.
    """
    found = []
    for position, k in enumerate(torch.randperm(len(classes), generator=stream).tolist()):
        share = count // len(classes) + int(position < count % len(classes))
        own = classes[k][torch.randperm(len(classes[k]), generator=stream)]
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
