"""FedAF (Wang et al., CVPR 2024): aggregation-free learning from condensed data.

In each round every client uploads the global model's mean logits on each of its classes, learns a
few images of each class with the global model's features and all clients' mean logits, and uploads
them. The server trains the global model on the images of all clients and matches the clients' soft
labels.

FedDM (Xiong et al., 2022), as FedAF's paper compares with it: clients learn their images with the
features of networks near the global model, and send nothing before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import MOST, AtLeast, AtMost, NotNegative, Positive, Settings, Within
from fl.clients import Clients, trained
from fl.condensation.task import (
    CondensationConfig,
    LocalCondensation,
    class_means,
    knowledge_matching,
    send_mean_logits,
)
from fl.exchange import prefixed
from fl.federation import Batch, RunSpec, Update
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.methods.method import Assignment, Choice, LogUniform, Method, Spaces, Uniform
from fl.receiving import check_probabilities, sent
from fl.rounds import Rounds
from fl.server import Outcome
from fl.training.classifier import starting_classifier


@dataclass(frozen=True, kw_only=True)
class CondensedConfig(Settings):
    """What FedAF's and FedDM's settings share."""

    condensation: CondensationConfig = CondensationConfig()
    fusion: FitConfig = FitConfig(epochs=50, lr=0.01, optimizer="sgd", batch_size=64, test_every=50)
    """Training of the global model in each round; tested after the round."""

    @property
    def local(self) -> LocalCondensation:
        """The training record of every client: what is shared, and the method's own settings."""
        own = {field.name for field in fields(LocalCondensation)} & vars(self).keys()
        return LocalCondensation(
            **vars(self.condensation), **{name: getattr(self, name) for name in own}
        )


@dataclass(frozen=True, kw_only=True)
class FedAFConfig(CondensedConfig):
    """FedAF's settings, sized for a laptop; the paper's are in the presets fedaf-*."""

    gamma: Annotated[float, Within(0, 1)] = 0.9
    """Share of the global model in the network of each step; the rest is a fresh random one."""
    collaboration: NotNegative = 1e-3
    """Weight of the collaborative term, the distance of the images' class-wise mean logits from
    all clients' (lambda_loc); 0 leaves it out."""
    projections: Annotated[int, AtLeast(0), AtMost(MOST)] = 0
    """Random directions of that sliced Wasserstein distance; 0 takes its closed form."""
    knowledge: NotNegative = 0.01
    """Weight of local-global knowledge matching (lambda_glob); 0 leaves the term out."""
    temperature: Positive = 1.0
    """Temperature tau of the soft labels that it matches."""
    clip: Positive | None = None
    """Norm to which the gradient of all of a client's images together is cut, as in FedDM; the
    paper names none for FedAF."""


SPACES = Spaces(
    local={
        "condensation.lr": LogUniform(0.01, 1.0),
        "gamma": Uniform(0.5, 1.0),
        "collaboration": LogUniform(1e-4, 1e-1),
        "condensation.images_per_class": Choice((10, 20, 50)),
        "knowledge": LogUniform(1e-3, 2.0),
        "fusion.lr": LogUniform(1e-3, 1e-1),
    }
)
FEDDM_SPACES = Spaces(
    local={
        "condensation.lr": LogUniform(0.01, 1.0),
        "rho": Uniform(0.0, 10.0),
        "condensation.images_per_class": Choice((10, 20, 50)),
        "fusion.lr": LogUniform(1e-3, 1e-1),
    }
)


@dataclass(frozen=True, kw_only=True)
class FedDMConfig(CondensedConfig):
    """FedDM's settings, sized for a laptop."""

    rho: NotNegative = 5.0
    """Radius around the global model within which the network of each step is drawn, at width 1; it
    shrinks with the root of the number of weights."""
    clip: Positive | None = 2.0
    """Norm to which the gradient of all of a client's images together is cut."""


def assign(config: CondensedConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client condenses.

    Raises:
        UserError: the model cannot take these images.
    """
    config.local.check(run_spec)
    return [Assignment("condenser", config.local)] * num_clients


def run(clients: Clients, server: Server, config: FedAFConfig, *, rounds: Rounds) -> Outcome:
    """The rounds of Section 4, each with two exchanges: V_k depends on the newest global model."""
    own = config.local
    model = starting_classifier(own, server.run_spec).to(server.device)
    loss = KnowledgeLoss(weight=config.knowledge, temperature=config.temperature)
    data: Batch = {}
    answered: dict[int, Tensor] = {}

    def check_condensed(update: Update, run_spec: RunSpec) -> None:
        trained(update, run_spec)
        check_answers(update, answered[update.client.id])

    for _ in rounds.play(clients, server, model):
        weights = clients.to_send(prefixed("classifier", model))
        logits = clients.map(  # Eqs. 5, 11
            send_mean_logits, broadcast=weights, check=check_knowledge
        )
        v = mean_over_holders(logits, "mean_logits", server.run_spec)  # Eq. 8
        r = mean_over_holders(logits, "soft_labels", server.run_spec)  # Eq. 12
        answered |= {u.client.id: answered_classes(u) for u in logits}
        shared = {"mean_logits": v} if config.collaboration else {}
        updates = clients.train(  # Eq. 10
            broadcast=shared, known=weights, check=check_condensed
        )
        data = condensed_data(updates, own)
        data["soft_labels"] = r[data["labels"]]
        with server.events.phase("fusion"):
            server.fit(model, data, loss=loss, config=config.fusion, stage="fusion")  # Eq. 14
    return rounds.outcome(model, synthetic=pictures(data))


def check_answers(update: Update, answered: Tensor) -> None:
    """Raises `ValueError` for images of a class whose soft labels their client did not send: where
    no other client has the class, the server would learn NaN."""
    missing = [c for c in update.tensors["classes"].tolist() if not answered[c]]
    if missing:
        raise ValueError(f"sent images of the classes {missing}, and no soft labels of them")


@dataclass(frozen=True, kw_only=True)
class KnowledgeLoss:
    """Eq. 14: cross-entropy + weight * LGKM of ``images`` with ``labels`` and ``soft_labels``.

    T is made of the batch's own class-wise mean logits; Eq. 13 takes all condensed data of a class.
    ``soft_labels`` (B, classes) are R's row of each sample's class; not needed without weight.
    """

    weight: float
    temperature: float

    @property
    def whole_batch(self) -> bool:
        """Class-wise means are of the whole batch; see :mod:`fl.fusion.whole_batch`."""
        return bool(self.weight)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = model(batch["images"]), batch["labels"]
        loss = F.cross_entropy(logits, labels)
        if self.weight:
            classes = logits.shape[1]
            means, there = class_means(logits, labels, classes)
            r, _ = class_means(batch["soft_labels"], labels, classes)
            log_t = (means / self.temperature).log_softmax(1)
            loss = loss + self.weight * knowledge_matching(r, log_t, there)
        return loss


def pictures(data: Batch) -> dict[str, Tensor]:
    """The last round's images for the report, pixels cut to [0, 1]; none if no round was run."""
    if not data:
        return {}
    images, labels = data["images"].clamp(0, 1), data["labels"]
    return {"images": images, "labels": labels, "kept": labels.new_tensor(range(len(labels)))}


def run_feddm(clients: Clients, server: Server, config: FedDMConfig, *, rounds: Rounds) -> Outcome:
    """One exchange per round."""
    own = config.local
    model = starting_classifier(own, server.run_spec).to(server.device)
    loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)
    data: Batch = {}
    for _ in rounds.play(clients, server, model):
        updates = clients.train(broadcast=clients.to_send(prefixed("classifier", model)))
        data = condensed_data(updates, own)
        with server.events.phase("fusion"):
            server.fit(model, data, loss=loss, config=config.fusion, stage="fusion")
    return rounds.outcome(model, synthetic=pictures(data))


# What the server makes of what clients sent.


def condensed_data(updates: Sequence[Update], config: CondensationConfig) -> Batch:
    """All clients' condensed ``images`` (N, C, H, W), float32, and their ``labels`` (N,).

    Raises:
        ValueError: there are none.
    """
    images, labels = [], []
    for update in updates:
        own, classes = update.tensors["images"], update.tensors["classes"]
        images.append(own.float() / 255 if config.pixels == "uint8" else own)
        labels.append(classes.repeat_interleave(config.images_per_class))
    data = {"images": torch.cat(images), "labels": torch.cat(labels)}
    if not len(data["labels"]):
        raise ValueError("no client condensed any class: lower condensation.min_samples")
    return data


def mean_over_holders(updates: Sequence[Update], name: str, run_spec: RunSpec) -> Tensor:
    """Mean of each class's row over the clients that have the class (Eqs. 8, 12), (classes, d).

    The paper divides by all clients. Rows of classes that no client has are NaN.

    Raises:
        ValueError: an upload has another shape or type.
    """
    return torch.stack([rows_of_holder(u, name, run_spec) for u in updates]).nanmean(0)


def rows_of_holder(update: Update, name: str, run_spec: RunSpec) -> Tensor:
    """A row for each class that the client sent soft labels of, (classes, classes); the others are
    NaN, whatever it sent.

    Raises:
        ValueError: an upload has another shape or type.
    """
    shape = (run_spec.num_classes, run_spec.num_classes)
    own, _ = sent(update, name, shape), sent(update, "soft_labels", shape)
    answered = answered_classes(update)
    if own[~answered].any():
        raise ValueError(f"{update.sender} sent {name} of classes without soft labels")
    return own.where(answered[:, None], torch.nan)


def answered_classes(update: Update) -> Tensor:
    """Whether the client sent soft labels of each class, bool (classes,): zeros are none."""
    return sent(update, "soft_labels").any(1)


def check_knowledge(update: Update, run_spec: RunSpec) -> None:
    """Mean logits and soft labels as FedAF's clients send them (Eqs. 5, 11).

    Raises:
        ValueError: they are not that.
    """
    rows_of_holder(update, "mean_logits", run_spec)
    soft = rows_of_holder(update, "soft_labels", run_spec)
    held = soft[answered_classes(update)]
    if len(held):
        check_probabilities(held, "soft_labels")


METHODS = [
    Method(name=name, config=config, assign=assign, run=own, one_shot=False, spaces=spaces)
    for name, config, own, spaces in (
        ("fedaf", FedAFConfig, run, SPACES),
        ("feddm", FedDMConfig, run_feddm, FEDDM_SPACES),
    )
]
