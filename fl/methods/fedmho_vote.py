"""FedMHO-Vote, our own: every client votes on a class by its share of that class's samples.

Uploads are FedMHO's, and classifier clients also tell their label counts (8 bytes a class). Labels
of synthetic samples are wrong where a decoder saw few samples of their class, and classifiers are
wrong on classes that they never saw. So neither is believed as a whole: a sample's label counts as
much as the generator clients hold of its class, and for the rest the classifiers vote, each on the
classes that it holds. Samples are warped before the vote. docs/methods.md has what was measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Within
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Batch, Update
from fl.fusion.fit import FitConfig
from fl.fusion.warping import Warp
from fl.methods.fedgen import tell_label_counts
from fl.methods.fedmho import (
    FedMHOConfig,
    allocate,
    assign,
    initialise,
    keep_best,
    spaces,
    synthesise,
)
from fl.methods.method import Method
from fl.methods.uploads import load_classifier, load_label_counts
from fl.metrics.teachers import describe_teacher
from fl.receiving import check_label_counts
from fl.server import Outcome, Samples, Server

SMALLEST = 1e-12
"""Of a vote, where its logarithm is taken."""


@dataclass(frozen=True, kw_only=True)
class FedMHOVoteConfig(FedMHOConfig):
    """FedMHO's settings, of which those of its loss (lam, betas, kl_reduction) and its teachers'
    weights have no part here."""

    correction: Annotated[float, Within(0, 1)] = 0.5
    """tau of Eq. 1: how far a classifier's own class frequencies are divided out of its vote."""
    warp: Annotated[float, Within(0, 2)] = 1.0
    """Strength of the samples' distortion; 0: none."""
    voting: bool = True
    """Whether classifiers vote; without it labels are believed, as by plain FedMHO."""
    fusion: FitConfig = FitConfig(schedule="cosine")


class Voter(nn.Module):
    """A client's vote on each class: its share of the class times what it says.

    ``v_k(c | x) = n_kc / N_c  softmax_c(log p_k(c | x) - tau log pi_k(c))`` (Eq. 1), where n_kc are
    its samples of the class, N_c those of all voters, and ``pi_k(c) = (n_kc + 1) / (n_k + C)``.
    """

    def __init__(self, classifier: nn.Module, own: Tensor, total: Tensor, tau: float) -> None:
        """``own`` and ``total``: (classes,), n_k and N."""
        super().__init__()
        self.classifier = classifier
        frequencies = (own + 1.0) / (own + 1.0).sum()
        self.register_buffer("offset", tau * frequencies.log().float())
        self.register_buffer("share", (own / total.clamp(min=1)).float())

    def forward(self, images: Tensor) -> Tensor:
        """(B, classes), not normalised."""
        said = (self.classifier(images).log_softmax(1) - self.offset).softmax(1)
        return said * self.share


@dataclass(frozen=True)
class VoteLoss:
    """Cross-entropy with ``t = r_y e_y + (1 - r_y) q(x)`` (Eq. 3): the label counts as much as
    generator clients hold of its class, the voters' answer for the rest.

    Batches hold ``images``, ``labels``, and ``teacher_logits``, log q.
    """

    trust: tuple[float, ...]
    """r of each class, 0 to 1."""
    one_pass: ClassVar[bool] = True
    """See :class:`fl.fusion.gradients.Gradients`."""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = model(batch["images"]), batch["labels"]
        trust = logits.new_tensor(self.trust)[labels].unsqueeze(1)
        label = F.one_hot(labels, logits.shape[1])
        target = trust * label + (1 - trust) * batch["teacher_logits"].softmax(1)
        return F.cross_entropy(logits, target)


def run(clients: Clients, server: Server, config: FedMHOVoteConfig) -> Outcome:
    """FedMHO's start and samples; then the warp, the vote, and one fit to its outcome."""
    updates = clients.train()
    classifiers = [u for u in updates if u.client.role == "classifier"]
    generators = [u for u in updates if u.client.role == "generator"]
    asked = [u.client.id for u in classifiers]
    told = {
        update.client.id: load_label_counts(update, server)
        for update in clients.map(tell_label_counts, only=asked, check=check_label_counts)
    }
    classifiers = [u for u in classifiers if u.client.id in told]

    with server.events.phase("synthesis"):
        synthetic = synthesise(generators, allocate(generators, server, config), server, config)
    with server.events.phase("filter"):
        kept = keep_best(synthetic, server, config)
        optimised = server.take(synthetic, kept)
    with server.events.phase("fusion"):
        model = initialise(classifiers, optimised, server, config)
        start = server.evaluate(model)
        warp = Warp(server.run_spec.seed, config.warp)
        optimised = server.apply(optimised, "images", warp)
        votes = np.stack([told[u.client.id] for u in classifiers])
        optimised = vote(classifiers, votes, optimised, server, config)
        labelled = np.stack([load_label_counts(u, server) for u in generators])
        trust = label_trust(votes, labelled) if config.voting else (1.0,) * votes.shape[1]
        logits, labels = (server.fetch(optimised, n) for n in ("teacher_logits", "labels"))
        result = server.fit(
            model, optimised, loss=VoteLoss(trust), config=config.fusion, stage="fusion"
        )
    return Outcome(
        model=model,
        start=start,
        epochs=result.epochs,
        synthetic={
            "images": server.fetch(synthetic, "images"),
            "labels": server.fetch(synthetic, "labels"),
            "kept": kept,
            "teacher_logits": logits,
        },
        figures={
            "synthetic": {"generated": len(synthetic), "kept": len(kept)},
            "teacher": describe_teacher(logits, labels),
            "label_trust": list(trust),
        },
    )


def vote(
    classifiers: list[Update],
    counts: np.ndarray,
    samples: Samples,
    server: Server,
    config: FedMHOVoteConfig,
) -> Samples:
    """Adds ``teacher_logits`` (N, classes): log q of ``q(c | x) = sum_k v_k(c | x) / sum_kc v_k``
    (Eq. 2). ``counts``: (classifiers, classes).

    Raises:
        UserError: the classifier clients hold no sample.
    """
    if not counts.any():
        raise UserError("fedmho-vote needs a classifier client that holds samples")
    own = torch.from_numpy(counts).double()
    total = own.sum(0)

    def voters() -> Iterator[nn.Module]:
        for update, held in zip(classifiers, own, strict=True):
            voter = Voter(load_classifier(update, server), held, total, config.correction)
            yield voter.to(server.device).eval()

    return server.apply(server.teach(samples, voters()), "teacher_logits", _log_shares)


def label_trust(classifiers: np.ndarray, generators: np.ndarray) -> tuple[float, ...]:
    """r_c = G_c / (G_c + N_c) of each class: the share of its samples that generator clients hold.

    Args:
        classifiers: (voters, classes), their label counts, with sums N_c.
        generators: (decoders, classes), with sums G_c.
    """
    voting, drawing = classifiers.sum(0), generators.sum(0)
    return tuple((drawing / np.maximum(voting + drawing, 1)).tolist())


def _log_shares(votes: Tensor) -> Tensor:
    return (votes / votes.sum(1, keepdim=True).clamp(min=SMALLEST)).clamp(min=SMALLEST).log()


METHOD = Method(
    name="fedmho-vote",
    config=FedMHOVoteConfig,
    assign=assign,
    run=run,
    supports_dp=True,
    spaces=spaces("none"),
)
