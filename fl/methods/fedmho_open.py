"""FedMHO-Open, Onefold's own method: FedMHO's uploads, fused by votes on open-set samples.

Classifier clients also send their label counts. So the server knows who holds how much of a class,
and neither a decoder's labels nor a classifier's answers are believed beyond that
(docs/methods/fedmho-open.md):

1. A decoder's sample has its label as far as its clients know the class, else the votes of the
   classifiers, each by its share of the class's samples.
2. For a class without a decoder stand shapes, drawn for mixed labels, that the voters claim for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from fl.bounds import MOST, Count, Positive, Within
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Batch, Update
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.open_set import (
    SMALLEST,
    VariedDecoder,
    best_of_each_class,
    elected,
    label_trust,
    open_quotas,
    trusted_labels,
    voting_shares,
    with_mixup,
)
from fl.fusion.server import Server
from fl.fusion.synthesis import label_share
from fl.methods.fedmho import (
    FedMHOConfig,
    allocate,
    assign,
    extra_of,
    initialise,
    keep_best,
    spaces,
    synthesise,
    train_both,
)
from fl.methods.method import Method
from fl.methods.uploads import ask_label_counts, label_counts_of, load_classifier
from fl.metrics.samples import describe_teacher
from fl.seeding import torch_generator
from fl.server import FitResult, Outcome, Samples

LOSS = FusionLoss(ce_weight=0.0, kd_weight=1.0)
"""KL(t || student), whose gradient is that of the cross-entropy with t."""


@dataclass(frozen=True, kw_only=True)
class FedMHOOpenConfig(FedMHOConfig):
    """FedMHO's settings but for its loss and its teachers, and what the votes and the open-set
    samples add."""

    half_trust: Positive = 30
    """H: samples of a class at generator clients from which on their decoders' labels count half or
    more. Above the classifier clients' counts: by their share of the class."""
    open_samples: Annotated[int, Within(0, MOST)] = 6000
    """Open-set samples drawn, by all decoders alike; 0: none."""
    open_share: Annotated[float, Within(0, 1, "(]")] = 0.4
    """Share of them that is kept, the best of each class."""
    mixing: Positive = 3.0
    """kappa: how far the mixed labels of open-set samples lean towards one class."""
    spread: Positive = 1.2
    """Factor on the z of open-set samples."""
    warp: Annotated[float, Within(0, 2)] = 1.0
    """Strength of the motion of a sample; open-set samples have twice as much. 0: none."""
    warmup: Count = 2
    """Epochs on the decoders' own samples alone, before the global model itself votes."""
    mixup: Annotated[float, Within(0, 10)] = 1.0
    """Images between two samples, for each sample. 0: none."""
    fusion: FitConfig = FitConfig(schedule="cosine")

    def check_further(self) -> None:
        """FedMHO's loss and teachers are not this method's."""
        super().check_further()
        for name in ("lam", "betas", "kl_reduction", "teacher_weights"):
            if getattr(self, name) != getattr(FedMHOConfig, name):
                raise UserError(f"{name} is of fedmho-md and fedmho-sd, not of fedmho-open")


def run(clients: Clients, server: Server, config: FedMHOOpenConfig) -> Outcome:
    """The algorithm of docs/methods/fedmho-open.md."""
    classifiers, generators = train_both(clients, config)
    extra = extra_of(classifiers, generators)
    classifiers, held = with_counts(clients, classifiers)
    drawn = label_counts_of(generators)

    with server.events.phase("synthesis"):
        allocation = allocate(generators, server, config)
        plain, own = (  # the same samples, unmoved and moved
            synthesise(generators, allocation, server, config, partial(VariedDecoder, warp=warp))
            for warp in (0.0, config.warp)
        )
        opened = [draw_open(generators, server, config)] if config.open_samples else []
    with server.events.phase("filter"):
        kept = keep_best(plain, server, config)  # by the samples as they were before they moved
        own = server.take(own, kept)
    with server.events.phase("fusion"):
        model = initialise(classifiers, own, clients, server, config)
        left = [i for i, u in enumerate(classifiers) if u.client.id not in clients.dropped]
        classifiers, held = [classifiers[i] for i in left], held[left]
        trust = label_trust(held, drawn, config.half_trust)
        start, sets = server.evaluate(model), [own, *opened]
        votes = poll(classifiers, voting_shares(held, trust), sets, server)
        labels = server.fetch(own, "labels").cpu()
        target = trusted_labels(labels, elected(votes[0])[0], trust)
        lessons = lessons_of(own, target, server)
        teacher = describe_teacher(lessons["teacher_logits"], labels)
        if opened:
            warmup = replace(config.fusion, epochs=config.warmup)
            learn(model, lessons, server, config, warmup, "warmup")
            quotas = open_quotas(held, trust, config.open_share * len(opened[0]))
            further = open_lessons(model, opened[0], votes[1], trust, quotas, server)
            lessons = {name: torch.cat([lessons[name], further[name]]) for name in lessons}
        result = learn(model, lessons, server, config, config.fusion, "fusion")
    return Outcome(
        model=model,
        start=start,
        epochs=result.epochs,
        synthetic={
            "images": server.fetch(plain, "images"),
            "labels": server.fetch(plain, "labels"),
            "kept": kept,
        },
        figures={
            "synthetic": {"generated": len(plain), "kept": len(kept)},
            "open_set": len(lessons["images"]) - len(kept),
            "teacher": teacher,
            "label_trust": trust.tolist(),
            **extra,
        },
    )


def with_counts(clients: Clients, classifiers: list[Update]) -> tuple[list[Update], np.ndarray]:
    """Asks the classifier clients for their label counts: those that answered, and what they hold,
    (classifiers, classes)."""
    counts = ask_label_counts(clients, only=[u.client.id for u in classifiers])
    able = {update.client.id for update in counts}
    return [u for u in classifiers if u.client.id in able], label_counts_of(counts)


def draw_open(generators: list[Update], server: Server, config: FedMHOOpenConfig) -> Samples:
    """The open-set samples, of all decoders alike: Eq. 3. Their labels say nothing."""
    allocation = label_share(label_counts_of(generators), config.open_samples)
    varied = partial(
        VariedDecoder, warp=2 * config.warp, spread=config.spread, mixing=config.mixing
    )
    return synthesise(generators, allocation, server, config, varied, "synthesis/open")


def poll(
    classifiers: list[Update], shares: Tensor, sets: Sequence[Samples], server: Server
) -> list[Tensor]:
    """The sum of the classifiers' votes, (N, classes), on each set of samples: v of Eq. 1.

    ``shares``: (classifiers, classes), what a vote of each counts.
    """
    totals = [torch.zeros(len(samples), shares.shape[1]) for samples in sets]
    for update, share in zip(classifiers, shares, strict=True):
        classifier = load_classifier(update, server)
        for total, samples in zip(totals, sets, strict=True):
            total += share * ask(classifier, samples, server)
    return totals


def open_lessons(
    model: nn.Module,
    opened: Samples,
    votes: Tensor,
    trust: Tensor,
    quotas: Sequence[int],
    server: Server,
) -> Batch:
    """The open-set samples that the voters claim, with their answers: Eq. 4.

    The global model, which has learned the decoders' samples by now, votes for the decoders.
    """
    shares, evidence = elected(votes + trust * ask(model, opened, server))
    best = best_of_each_class(shares, evidence, quotas)
    return lessons_of(server.take(opened, best), shares[best], server)


def learn(
    model: nn.Module,
    lessons: Batch,
    server: Server,
    config: FedMHOOpenConfig,
    fit: FitConfig,
    stage: str,
) -> FitResult:
    """Trains the model on the lessons and on images between them: Eq. 5."""
    generator = torch_generator(server.run_spec.seed, f"mixup/{stage}")
    mixed = with_mixup(lessons, config.mixup, generator)
    return server.fit(model, mixed, loss=LOSS, config=fit, stage=stage)


def ask(model: nn.Module, samples: Samples, server: Server) -> Tensor:
    """p(c | x), the model's probabilities (N, classes) on samples, in this process."""
    taught = server.teach(samples.only("images"), [model])
    return server.fetch(taught, "teacher_logits").cpu().softmax(1)


def lessons_of(samples: Samples, target: Tensor, server: Server) -> Batch:
    """What the global model learns from: images, and what to answer as logits."""
    images = server.fetch(samples, "images")
    return {"images": images, "teacher_logits": target.clamp(min=SMALLEST).log().to(images.device)}


METHOD = Method(
    name="fedmho-open", config=FedMHOOpenConfig, assign=assign, run=run, spaces=spaces("none")
)
