"""FedMHO-Open, Onefold's own method: FedMHO's uploads, fused by votes on open-set samples.

Classifier clients also send their label counts. So the server knows who holds how much of a class,
and neither a decoder's labels nor a classifier's answers are believed beyond that
(docs/methods/fedmho-open.md, which numbers the equations):

1. A decoder's sample has its label as far as its clients know the class, else the votes of the
   classifiers, each by its share of the class's samples.
2. For a class without a decoder stand shapes, drawn for mixed labels, that the voters claim for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import MOST, Count, Positive, Within
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Batch, Update
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.fusion.synthesis import label_share
from fl.methods import fedmho
from fl.methods.method import Method
from fl.methods.uploads import ask_label_counts, label_counts_of, load_classifier
from fl.models.architectures.cvaes import Decoder
from fl.sample_quality import describe_teacher
from fl.seeding import torch_generator
from fl.server import FitResult, Outcome, Samples

SMALLEST = 1e-9
"""Of a vote, where it is divided by or its logarithm is taken."""
MOTION = 6
"""Numbers of the code that move an image: angle, two scales, shear, two shifts."""
SMALLEST_SCALE = 1e-6
"""The smallest pixel, and the distance of the largest from 1, where its logit is taken."""
LOSS = FusionLoss(ce_weight=0.0, kd_weight=1.0)
"""KL(t || student), whose gradient is that of the cross-entropy with t."""


@dataclass(frozen=True, kw_only=True)
class FedMHOOpenConfig(fedmho.FedMHOConfig):
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
            if getattr(self, name) != getattr(fedmho.FedMHOConfig, name):
                raise UserError(f"fedmho-open does not use {name}; fedmho-md and fedmho-sd do")


def run(clients: Clients, server: Server, config: FedMHOOpenConfig) -> Outcome:
    """The algorithm of docs/methods/fedmho-open.md."""
    classifiers, generators = fedmho.train_both(clients, config)
    extra = fedmho.extra_of(classifiers, generators)
    classifiers, held = with_counts(clients, classifiers)
    drawn = label_counts_of(generators)

    with server.events.phase("synthesis"):
        plain, own = draw(generators, server, config)
        opened = [draw_open(generators, server, config)] if config.open_samples else []
    with server.events.phase("filter"):
        kept = fedmho.keep_best(plain, server, config)  # by the samples before they moved
        own = server.take(own, kept)
    with server.events.phase("fusion"):
        model = fedmho.initialise(classifiers, own, clients, server, config)
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
        synthetic=server.pictures(plain, kept),
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


def draw(generators: list[Update], server: Server, config: FedMHOOpenConfig) -> list[Samples]:
    """The decoders' samples of their own labels, unmoved and moved."""
    allocation = fedmho.allocate(generators, server, config)
    return [
        fedmho.synthesise(generators, allocation, server, config, partial(VariedDecoder, warp=warp))
        for warp in (0.0, config.warp)
    ]


def draw_open(generators: list[Update], server: Server, config: FedMHOOpenConfig) -> Samples:
    """The open-set samples, of all decoders alike: Eq. 3. Their labels say nothing."""
    allocation = label_share(label_counts_of(generators), config.open_samples)
    varied = partial(
        VariedDecoder, warp=2 * config.warp, spread=config.spread, mixing=config.mixing
    )
    return fedmho.synthesise(generators, allocation, server, config, varied, "synthesis/open")


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


# What the algorithm is made of: trust in labels, votes, open-set samples, mixup.


def label_trust(held: np.ndarray, drawn: np.ndarray, half: float) -> Tensor:
    """r (classes,), Eq. 1: how far decoders' labels are believed.

    It is M / (M + min(N, max(M, ``half``))), where classifier clients' counts (clients, classes)
    sum to N and the decoders' clients' to M.
    """
    known = drawn.sum(0)
    against = np.minimum(held.sum(0), np.maximum(known, half))
    return torch.from_numpy(known / np.maximum(against + known, SMALLEST)).float()


def voting_shares(held: np.ndarray, trust: Tensor) -> Tensor:
    """(1 - r_c) n_kc / N_c of Eq. 1, (clients, classes): what a classifier's probability counts."""
    counts = torch.from_numpy(held)
    return (1 - trust) * counts / counts.sum(0).clamp(min=1)


def elected(votes: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of all votes (N, classes) as shares q, and how much was voted, (N,): Eq. 1.

    Where nobody votes all classes are alike.
    """
    total = votes + SMALLEST
    evidence = total.sum(1)
    return total / evidence.unsqueeze(1), evidence


def trusted_labels(labels: Tensor, shares: Tensor, trust: Tensor) -> Tensor:
    """t (N, classes), Eq. 2: r_y e_y + (1 - r_y) q, of labels y (N,) and shares q (N, classes)."""
    believed = trust[labels].unsqueeze(1)
    return believed * F.one_hot(labels, len(trust)) + (1 - believed) * shares


class VariedDecoder(Decoder):
    """A decoder with a longer code, all of it N(0, I): z; numbers that mix labels; `MOTION`.

    So the caller draws samples as of any decoder, and each follows from its code alone.
    """

    def __init__(
        self, decoder: Decoder, *, warp: float, spread: float = 1.0, mixing: float | None = None
    ) -> None:
        """``warp``: strength of the motion; ``spread``: factor on z; ``mixing``: kappa of
        softmax(kappa g), g ~ N(0, I), which takes the label's place. None: the label is kept."""
        mixed = 0 if mixing is None else decoder.num_classes
        super().__init__(decoder.layers, decoder.latent + mixed + MOTION, decoder.num_classes)
        self._sizes = (decoder.latent, mixed, MOTION)
        self.warp, self.spread, self.mixing = warp, spread, mixing

    def forward(self, z: Tensor, onehot: Tensor) -> Tensor:
        """Image logits (B, C, H, W) of the code z (B, latent) and labels (B, num_classes)."""
        own, blend, motion = z.split(self._sizes, dim=1)
        label = onehot if self.mixing is None else (self.mixing * blend).softmax(1)
        logits = super().forward(self.spread * own, label)
        if not self.warp:
            return logits
        return torch.logit(moved(logits.sigmoid(), motion, self.warp), eps=SMALLEST_SCALE)


def moved(images: Tensor, motion: Tensor, strength: float) -> Tensor:
    """The images (B, C, H, W) rotated, scaled, sheared and shifted, each by its own numbers.

    With u = 2 Phi(motion) - 1, uniform on [-1, 1], and the strength as factor: 12 u degrees, sides
    times exp(0.15 u), shear 0.15 u, and shifts of 0.05 u of a side. What comes in from outside is
    the border's pixel.

    Args:
        images: to move.
        motion: (B, `MOTION`), standard normal.
        strength: 0 leaves the images as they are.
    """
    u = (2 * torch.special.ndtr(motion) - 1) * strength
    angle = u[:, 0] * math.radians(12)
    wide, high, shear = (u[:, 1:4] * 0.15).unbind(1)
    right, down = (u[:, 4:] * 0.1).unbind(1)  # a side is 2 long
    cos, sin = angle.cos(), angle.sin()
    rows = (
        torch.stack([wide.exp() * cos, wide.exp() * (shear * cos - sin), right], 1),
        torch.stack([high.exp() * sin, high.exp() * (shear * sin + cos), down], 1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def open_quotas(held: np.ndarray, trust: Tensor, total: float) -> list[int]:
    """m_c of Eq. 4: how many open-set samples are kept of each class, ``total`` together. The less
    its decoders' labels are believed the more, so most of what no decoder has learned."""
    need = (1 - trust.double()) * torch.from_numpy(held.sum(0) > 0)
    return (total * need / need.sum().clamp(min=SMALLEST)).long().tolist()


def best_of_each_class(shares: Tensor, evidence: Tensor, quotas: Sequence[int]) -> Tensor:
    """Indices, ascending, of the samples with the most votes for a class and the fewest for others.

    Eq. 4: of class c those ``quotas[c]`` with the highest v_c q_c = evidence q_c^2. A sample that
    is among the best of two classes is there once.

    Args:
        shares: (N, classes), q.
        evidence: (N,).
        quotas: for each class, N at most.
    """
    worth = evidence.unsqueeze(1) * shares**2
    best = [worth[:, c].topk(quota).indices for c, quota in enumerate(quotas)]
    return torch.cat(best).unique()


def with_mixup(lessons: Batch, share: float, generator: torch.Generator) -> Batch:
    """The lessons, and behind them mixtures of two of them at a time.

    Eq. 5, mixup (Zhang et al., ICLR 2018, with alpha = 1): x = l x_i + (1 - l) x_j and
    t = l t_i + (1 - l) t_j with l ~ U(0, 1); i and j are drawn among all lessons.

    Args:
        lessons: ``images`` (N, C, H, W), and targets t as ``teacher_logits`` (N, classes), log t.
        share: round(share N) mixtures; 0 gives the lessons as they are.
        generator: on the CPU, for pairs and weights.
    """
    images, answers = lessons["images"], lessons["teacher_logits"]
    count = round(share * len(images))
    first, second = torch.randint(len(images), (2, count), generator=generator).to(images.device)
    weight = torch.rand(count, generator=generator).to(images)

    def between(values: Tensor) -> Tensor:
        shaped = weight.view(-1, *[1] * (values.dim() - 1))
        return shaped * values[first] + (1 - shaped) * values[second]

    target = between(answers.softmax(1)).clamp(min=SMALLEST).log()
    return {
        "images": torch.cat([images, between(images)]),
        "teacher_logits": torch.cat([answers, target]),
    }


METHOD = Method(
    name="fedmho-open",
    config=FedMHOOpenConfig,
    assign=fedmho.assign,
    run=run,
    spaces=fedmho.spaces("none"),
)
