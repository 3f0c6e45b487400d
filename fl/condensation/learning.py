"""How clients learn their condensed images: one client, or several as one computation.

As in local training (:mod:`fl.training.stacked`), the clients' rows lie one after the other in one
batch. Layers with weights or a state, BatchNorm too, run for each client on its own rows, the rest
for all at once; so a client's images do not depend on its cohort, bit for bit.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fl.condensation.augment import draw_augmentation
from fl.condensation.config import LocalCondensation
from fl.condensation.images import ByClass
from fl.condensation.losses import (
    distribution_matching,
    random_directions,
    sliced_wasserstein,
)
from fl.condensation.network import Networks
from fl.federation import TaskInput
from fl.seeding import in_round, torch_seeded
from fl.training.classifier import received_classifier
from fl.training.features import features_and_logits
from fl.training.loop import Step, minimise
from fl.training.optimizers import SGD
from fl.training.per_client import Turns, cohort_model, dropout_in
from fl.training.progress import has_listener, report
from fl.training.step_losses import StepLosses


class Condensing:
    """One client's condensation: its images, real and condensed, its networks and its streams."""

    def __init__(self, inputs: TaskInput, config: LocalCondensation) -> None:
        self.client = inputs.client.id
        self._config = config
        self._data = ByClass(inputs.shard, config.min_samples, inputs.device)
        self._goals = inputs.broadcast.get("mean_logits")
        self._order = inputs.stream("condense/batches")
        self._chance = inputs.stream("condense/augmentation")
        self._directions = inputs.stream("condense/directions")
        purpose = in_round("condense/dropout", inputs.round)
        self.dropout = (inputs.run_spec.seed, purpose, inputs.client.id)
        """Seed, purpose and client that seed torch's global stream while the client learns."""
        self.networks = Networks(received_classifier(inputs, config), inputs, config)
        self.images = self._data.start(
            config.images_per_class,
            config.averaged,
            inputs.stream("condense/start"),
            noise=config.init == "noise",
        )
        """The condensed images, learned in place, (m * IPC, C, H, W), class after class."""
        self.losses = StepLosses()

    @property
    def stats(self) -> dict[str, float]:
        """The last step's loss and the number of steps; nothing of a client without images."""
        if not len(self.images):
            return {}
        return {"train_loss": self.losses.last, "steps": float(self._config.steps)}

    @property
    def classes(self) -> Tensor:
        """The classes that are condensed, ascending, int64 (m,)."""
        return self._data.classes

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draws the step's network; returns real images and the condensed ones, augmented alike."""
        self.networks.move()
        augment = draw_augmentation(self._config.augment, self._chance)
        with torch.no_grad():
            real = augment(self._data.batch(self._config.batch_size, self._order))
        return real, augment(self.images)

    def loss(self, real: Tensor, condensed: Tensor, logits: Tensor) -> Tensor:
        """Eq. 10 on mean features and logits; Eq. 4 where the server sent no mean logits."""
        m = len(self.classes)
        loss = distribution_matching(_means(real, m), _means(condensed, m))
        if self._goals is not None:
            u, v = _means(logits, m), self._goals[self.classes].to(logits.device)
            slices = random_directions(self._config.projections, u.shape[1], self._directions)
            distance = sliced_wasserstein(u, v, slices.to(u.device))
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
                if has_listener():
                    report(client.client, taken + 1, config.steps, loss.detach().item, "step")

    def clip() -> None:
        if config.clip is not None:
            for own in images:
                nn.utils.clip_grad_norm_([own], config.clip)

    with torch_seeded(*clients[0].dropout):
        minimise(steps(), [[own] for own in images], optimizer, clip)
    for client in clients:
        client.images.requires_grad_(False)


def _losses(clients: Sequence[Condensing], network: nn.Module, turns: Turns) -> list[Tensor]:
    """Each client's loss in the next step."""
    drawn = [client.draw() for client in clients]
    with torch.no_grad():
        real = _features_and_logits(network, turns, [real for real, _ in drawn])
    condensed = _features_and_logits(network, turns, [condensed for _, condensed in drawn])
    return [
        client.loss(theirs, *ours)
        for client, (theirs, _), ours in zip(clients, real, condensed, strict=True)
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
