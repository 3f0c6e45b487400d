"""Condensation on a client: it uploads the global model's mean logits, and condenses its data."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, OneOf, Positive, Settings, Width, Within
from fl.condensation.images import KINDS, as_bytes, draw_augmentation
from fl.data.shard import Shard
from fl.events import report
from fl.federation import RunSpec, Task, TaskInput, TaskOutput, Training, Update
from fl.models.registry import CLASSIFIERS, build_classifier, check_classifier, copied
from fl.receiving import WHY, sent
from fl.seeding import OwnStream, in_round, seeded
from fl.training.classifier import received_classifier
from fl.training.features import check_head, features_and_logits
from fl.training.optimizers import SGD
from fl.training.recipe import Step, minimise
from fl.training.stacked import Turns, cohort_model, dropout_in
from fl.training.steps import StepLosses, on_device
from fl.training.task import task_for_many

# A client's real images by class: condensation starts from them and matches them.

NOISE_MEAN, NOISE_STD = 0.5, 0.25
"""Mean and deviation of images that start from noise: pixels lie in [0, 1]."""


class ByClass:
    """A client's images by class, for the classes of which it has enough.

    Args:
        shard: the client's data.
        min_samples: classes with fewer are left out.
        device: where batches are needed.
    """

    def __init__(self, shard: Shard, min_samples: int, device: torch.device) -> None:
        self.images = shard.images.to(device)
        """All images, (N, C, H, W)."""
        counts = shard.label_counts
        held = torch.nonzero((counts >= min_samples) & (counts > 0)).flatten()
        self.classes: Tensor = held
        """The classes, ascending, int64 (m,)."""
        self._rows = [torch.nonzero(shard.labels == c).flatten() for c in held]

    def start(
        self, per_class: int, averaged: int, stream: torch.Generator, *, noise: bool
    ) -> Tensor:
        """Images to start from, (m * per_class, C, H, W), class after class.

        Each is the mean of ``averaged`` random real ones of its class, some perhaps twice, or
        noise.
        """
        shape = self.images.shape[1:]
        if noise:
            drawn = torch.randn(len(self._rows) * per_class, *shape, generator=stream)
            return (NOISE_MEAN + NOISE_STD * drawn).to(self.images.device)
        chosen = [
            rows[torch.randint(len(rows), (per_class, averaged), generator=stream)]
            for rows in self._rows
        ]
        none = torch.empty(0, averaged, dtype=torch.int64)
        return self.images[torch.cat([none, *chosen]).to(self.images.device)].mean(1)

    def draw_batch(self, per_class: int, stream: torch.Generator) -> Tensor:
        """Places of real images, int64 (m * per_class,) on the CPU, class after class, without
        repetition.

        A class with fewer samples is repeated, so that all classes have the same weight in the
        statistics that BatchNorm computes over the batch.
        """
        positions = torch.arange(per_class)
        chosen = [
            rows[torch.randperm(len(rows), generator=stream)[positions % len(rows)]]
            for rows in self._rows
        ]
        return torch.cat(chosen)

    def __iter__(self) -> Iterator[Tensor]:
        """All images of each class, (n, C, H, W)."""
        return (self.images[rows.to(self.images.device)] for rows in self._rows)


# Settings of how a client condenses its data; with shard and seed they determine its upload.

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
        classes, sender = sent(update, "classes"), update.sender
        possible = sorted(set(classes.flatten().tolist()) & set(range(run_spec.num_classes)))
        if classes.dtype != torch.int64 or classes.tolist() != possible:
            raise ValueError(f"{sender} sent impossible classes {classes.tolist()}")
        shape = (len(classes) * self.images_per_class, *run_spec.image_shape)
        dtype = torch.uint8 if self.pixels == "uint8" else torch.float32
        images = sent(update, "images", shape, dtype)
        most = MOST_PIXEL * max(1.0, self.lr)
        if images.is_floating_point() and len(images) and float(images.abs().max()) > most:
            raise ValueError(f"{sender} sent images with pixels above {most:g}: {WHY}")


@dataclass(frozen=True, kw_only=True)
class LocalCondensation(CondensationConfig, Training):
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

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return condense

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

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """Bytes of the images as float32, with all classes."""
        images = run_spec.num_classes * self.images_per_class
        return 4 * images * math.prod(run_spec.image_shape)


# The terms of FedAF's two losses (CVPR'24), from class-wise means.


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Means (classes, d) of values (N, d) by class, and which classes have samples, (classes,).

    Classes without a sample have zeros. A matrix product fixes the sum's order, on GPUs too.
    """
    classes = torch.arange(num_classes, device=labels.device)
    members = (labels.unsqueeze(1) == classes).to(values.dtype)
    counts = members.sum(0)
    return members.T @ values / counts.clamp(min=1).unsqueeze(1), counts > 0


def distribution_matching(real: Tensor, condensed: Tensor) -> Tensor:
    """Eq. 4: sum_c ||mu_c(real) - mu_c(condensed)||^2 of mean features, (classes, d) each."""
    return (real - condensed).square().sum()


def sliced_wasserstein(u: Tensor, v: Tensor, directions: Tensor) -> Tensor:
    """The collaborative term of Eq. 10: sum_c SWD_2(u_c, v_c) of mean logits, (classes, d) each.

    Between two single vectors, SWD_2 is the root mean square of their difference's projections on
    all unit vectors, which is ||u - v|| / sqrt(d). With ``directions`` (L, d), unit vectors, it is
    that over these; L = 0 takes the closed form.
    """
    difference = u - v
    if not len(directions):
        return difference.norm(dim=1).sum() / difference.shape[1] ** 0.5
    projected = difference @ directions.T
    return projected.norm(dim=1).sum() / len(directions) ** 0.5


def random_directions(count: int, dimensions: int, stream: torch.Generator) -> Tensor:
    """Unit vectors, uniform on the sphere, (count, dimensions)."""
    return F.normalize(torch.randn(count, dimensions, generator=stream), dim=1)


def knowledge_matching(soft_labels: Tensor, log_soft_labels: Tensor, there: Tensor) -> Tensor:
    """Eq. 15: (KL(R || T) + KL(T || R)) / 2, summed over entries, mean over classes.

    Args:
        soft_labels: R, (classes, d), of the clients' data.
        log_soft_labels: log T, (classes, d), of the condensed data.
        there: which classes count, (classes,): no index, for which a GPU would ask how many.
    """
    # Usually far from 0, but a client may be so confident that its float underflows.
    log_r = soft_labels.clamp(min=torch.finfo(soft_labels.dtype).tiny).log()
    both = (soft_labels - log_soft_labels.exp()) * (log_r - log_soft_labels)
    return both.sum(1).where(there, 0).sum() / 2 / there.sum()


# The network whose features condensation matches: drawn near the global model in every step.


class Networks:
    """A network near the global model w, drawn anew in place for every step.

    It is gamma w + (1 - gamma) w', where w' is a random start (FedAF, Eq. 17), or w + d, where d
    has a random direction and a norm of at most :func:`radius` (FedDM). Both draw from the client's
    own streams.
    """

    def __init__(self, model: nn.Module, inputs: TaskInput, config: LocalCondensation) -> None:
        self._model, self._run_spec, self._config = model, inputs.run_spec, config
        self._radius = radius(config, inputs.run_spec)
        self._stream = inputs.stream("condense/radius")
        purpose = in_round("condense/network", inputs.round)
        self._starts = OwnStream(inputs.run_spec.seed, purpose, inputs.client.id)
        self.network = copied(model).train(config.network == "train")
        """The present step's network, frozen."""
        self.network.requires_grad_(False)

    @torch.no_grad()
    def move(self) -> None:
        """Draws the next step's network."""
        weights = [w.detach() for w in self._model.parameters()]
        if self._config.gamma < 1:
            with self._starts:
                start = _built(self._config.model, self._config.width, self._run_spec)
            fresh = on_device(list(start.parameters()), weights[0].device)
            weights = [f.lerp(w, self._config.gamma) for f, w in zip(fresh, weights, strict=True)]
        if self._radius > 0:
            weights = within_radius(weights, self._radius, self._stream)
        for parameter, w in zip(self.network.parameters(), weights, strict=True):
            parameter.copy_(w)


def radius(config: LocalCondensation, run_spec: RunSpec) -> float:
    """FedDM's radius for the network as wide as it is: rho sqrt(weights / weights at width 1).

    rho is a norm, and that of a random direction grows with the root of the number of weights: so
    each of them moves as far at any width.
    """
    if config.width == 1 or not config.rho:
        return config.rho
    own, papers = (_weights(config.model, width, run_spec) for width in (config.width, 1.0))
    return config.rho * math.sqrt(own / papers)


@lru_cache(maxsize=8)
def _weights(model: str, width: float, run_spec: RunSpec) -> int:
    with torch.device("meta"):
        return sum(w.numel() for w in _built(model, width, run_spec).parameters())


def _built(model: str, width: float, run_spec: RunSpec) -> nn.Module:
    return build_classifier(model, run_spec.image_shape, run_spec.num_classes, width=width)


def within_radius(weights: list[Tensor], rho: float, stream: torch.Generator) -> list[Tensor]:
    """The weights plus one Gaussian draw, which is shortened to norm ``rho`` if it is longer.

    With as many dimensions as a network has weights it always is longer.
    """
    drawn = [torch.randn(w.shape, generator=stream) for w in weights]
    moves = on_device(drawn, weights[0].device)
    norm = torch.stack([move.norm() for move in moves]).norm()
    scale = (rho / norm).clamp(max=1)
    return [w + scale * move for w, move in zip(weights, moves, strict=True)]


# How clients learn their condensed images: one client, or several as one computation.
#
# As in local training (:mod:`fl.training.stacked`), the clients' rows lie one after the other in
# one batch. Layers with weights or a state, BatchNorm too, run for each client on its own rows,
# the rest for all at once; so a client's images do not depend on its cohort, bit for bit.


AHEAD = 16
"""Steps for which a client's real images and directions are drawn, and sent, at once."""


class Drawn(NamedTuple):
    """What a client's loss of one step is computed of, on its device."""

    real: Tensor
    """Real images, (m * B, C, H, W), class after class, augmented."""
    condensed: Tensor
    """The condensed ones, (m * IPC, C, H, W), augmented alike."""
    directions: Tensor
    """Those of :func:`sliced_wasserstein`, (L, classes)."""


class Condensing:
    """One client's condensation: its images, real and condensed, its networks and its streams."""

    def __init__(self, inputs: TaskInput, config: LocalCondensation) -> None:
        self.client = inputs.client.id
        self._config, self._num_classes = config, inputs.run_spec.num_classes
        self._data = ByClass(inputs.shard, config.min_samples, inputs.device)
        self._order = inputs.stream("condense/batches")
        self._chance = inputs.stream("condense/augmentation")
        self._directions = inputs.stream("condense/directions")
        purpose = in_round("condense/dropout", inputs.round)
        self.dropout = (inputs.run_spec.seed, purpose, inputs.client.id)
        """Seed, purpose and client that seed torch's global stream while the client learns."""
        self.networks = Networks(received_classifier(inputs, config), inputs, config)
        self.classes = self._data.classes
        """The classes that are condensed, ascending, int64 (m,)."""
        goals = inputs.broadcast.get("mean_logits")
        self._goals = None if goals is None else goals[self.classes].to(inputs.device)
        self.images = self._data.start(
            config.images_per_class,
            config.averaged,
            inputs.stream("condense/start"),
            noise=config.init == "noise",
        )
        """The condensed images, learned in place, (m * IPC, C, H, W), class after class."""
        self.losses = StepLosses()
        self._ahead = self._draw_ahead()

    def draw(self) -> Drawn:
        """Draws the step's network, which :attr:`networks` then holds, and the rest."""
        self.networks.move()
        places, directions = next(self._ahead)
        augment = draw_augmentation(self._config.augment, self._chance)
        with torch.no_grad():
            real = augment(self._data.images[places])
        return Drawn(real, augment(self.images), directions)

    def _draw_ahead(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The places of each step's real images, (m * B,), and its directions, on the device."""
        config, device = self._config, self.images.device
        for first in range(0, config.steps, AHEAD):
            count = min(AHEAD, config.steps - first)
            places = [self._data.draw_batch(config.batch_size, self._order) for _ in range(count)]
            directions = [
                random_directions(config.projections, self._num_classes, self._directions)
                for _ in range(count)
            ]
            sent = on_device([*places, *directions], device)
            yield from zip(sent[:count], sent[count:], strict=True)

    def loss(self, real: Tensor, condensed: Tensor, logits: Tensor, directions: Tensor) -> Tensor:
        """Eq. 10 on mean features and logits; Eq. 4 where the server sent no mean logits."""
        m = len(self.classes)
        loss = distribution_matching(_means(real, m), _means(condensed, m))
        if self._goals is not None:
            distance = sliced_wasserstein(_means(logits, m), self._goals, directions)
            loss = loss + self._config.collaboration * distance
        return loss


def learn(clients: Sequence[Condensing], config: LocalCondensation) -> None:
    """Minimises Eq. 10 over the images of each client, in place; all its classes in one batch."""
    if not clients:
        return
    if len(clients) > 1 and dropout_in(clients[0].networks.network):
        # Masks come from torch's global stream, which has to be one client's: each learns alone.
        for client in clients:
            learn([client], config)
        return
    turns = Turns()
    turns.clients = range(len(clients))
    network = cohort_model([client.networks.network for client in clients], turns)
    images = [client.images.requires_grad_() for client in clients]
    optimizer = SGD(config.lr, config.momentum).for_cohort([[own] for own in images])

    def steps() -> Iterator[Step]:
        for taken in range(config.steps):
            losses = _losses(clients, network, turns)
            yield Step(torch.stack(losses).sum(), turns.clients)
            for client, loss in zip(clients, losses, strict=True):
                client.losses.add(loss)
                report(client.client, taken + 1, config.steps, loss.detach().item, "step")

    def clip() -> None:
        if config.clip is not None:
            for own in images:
                nn.utils.clip_grad_norm_([own], config.clip)

    with seeded(*clients[0].dropout):
        minimise(steps(), [[own] for own in images], optimizer, clip)
    for client in clients:
        client.images.requires_grad_(False)


def _losses(clients: Sequence[Condensing], network: nn.Module, turns: Turns) -> list[Tensor]:
    """Each client's loss in the next step."""
    drawn = [client.draw() for client in clients]
    with torch.no_grad():
        real = _features_and_logits(network, turns, [own.real for own in drawn])
    condensed = _features_and_logits(network, turns, [own.condensed for own in drawn])
    return [
        client.loss(theirs, *ours, own.directions)
        for client, own, (theirs, _), ours in zip(clients, drawn, real, condensed, strict=True)
    ]


def _features_and_logits(
    network: nn.Module, turns: Turns, batches: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Each client's features and logits of its own batch."""
    turns.rows = [len(batch) for batch in batches]
    together = batches[0] if len(batches) == 1 else torch.cat(list(batches))
    features, logits = features_and_logits(network, together)
    return list(zip(features.split(turns.rows), logits.split(turns.rows), strict=True))


def _means(values: Tensor, classes: int) -> Tensor:
    """Class-wise means (classes, d) of values (N, d): class after class, equally many of each."""
    return values.view(classes, -1, values.shape[1]).mean(1)


ROWS = 1024
"""Images in one forward pass without gradients."""


@torch.no_grad()
def send_mean_logits(inputs: TaskInput) -> TaskOutput:
    """Uploads the global model's mean logits, in eval mode, on each of the client's classes.

    ``mean_logits`` V_k (Eq. 5) and ``soft_labels`` R_k (Eq. 11), (classes, classes) each. Rows of
    classes that the client does not condense are zeros.
    """
    config = inputs.record(LocalCondensation)
    model = received_classifier(inputs, config).eval()
    data = ByClass(inputs.shard, config.min_samples, inputs.device)
    classes = inputs.run_spec.num_classes
    logits = torch.zeros(classes, classes)
    for c, images in zip(data.classes.tolist(), data, strict=True):
        logits[c] = torch.cat([model(rows) for rows in images.split(ROWS)]).mean(0).cpu()
    soft = torch.zeros(classes, classes)
    own = data.classes.cpu()
    soft[own] = (logits[own] / config.temperature).softmax(1)
    return TaskOutput(tensors={"mean_logits": logits, "soft_labels": soft})


@task_for_many
def condense(clients: Sequence[TaskInput]) -> list[TaskOutput]:
    """Learns condensed images S_k of each client's classes and uploads them.

    ``images`` (m * IPC, C, H, W) are ordered class after class; ``classes`` (m,) lists the classes.
    """
    config = clients[0].record(LocalCondensation)
    cohort = [Condensing(inputs, config) for inputs in clients]
    learn([client for client in cohort if len(client.images)], config)
    return [_upload(client, config) for client in cohort]


def _upload(client: Condensing, config: LocalCondensation) -> TaskOutput:
    images = as_bytes(client.images) if config.pixels == "uint8" else client.images
    stats = {}
    if len(images):
        stats = {"train_loss": client.losses.last, "steps": float(config.steps)}
    tensors = {"images": images, "classes": client.classes}
    return TaskOutput(tensors=tensors, stats=stats, losses=client.losses.curve)
