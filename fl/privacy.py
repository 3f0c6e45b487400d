"""What a run's uploads and its global model reveal about the samples they were made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fl.condensation.images import as_bytes, nearest
from fl.condensation.task import CondensationConfig
from fl.data.datasets import Dataset
from fl.data.shard import Shard
from fl.exchange import load_prefixed
from fl.federation import RunSpec, Training
from fl.json_files import JsonObject
from fl.models.architectures.cvaes import sample
from fl.models.common import state_sent
from fl.seeding import numpy_generator, torch_generator
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig, starting_generator
from fl.training.losses import logits_of

# Whether images that were made of a client's data repeat it: nearer to it than to unseen data.


def copies(images: Tensor, train: Tensor, test: Tensor) -> JsonObject:
    """Compares all uint8 (., C, H, W); ``train`` and ``test`` are of the same size and classes.

    Returns:
        How many ``images`` there are; the median root mean square distance, from 0 to 1, to the
        nearest image of the client's training, ``to_train``, and of as many that nobody trained on,
        ``to_test``; ``nearer``, the share of images that are nearer to a training image (0.5 is
        chance); and ``ratio`` of the distances: below 1 images lie nearer to what was trained on,
        0 are copies.
    """
    to_train, to_test = (nearest(images, real)[0] for real in (train, test))
    nearer = (to_train < to_test).double() + (to_train == to_test).double() / 2
    trained, tested = float(to_train.median()), float(to_test.median())
    return {
        "images": len(images),
        "to_train": trained,
        "to_test": tested,
        "nearer": float(nearer.mean()),
        "ratio": trained / tested if tested else 1.0,
    }


# How well an attack's scores separate members from non-members: ROC curve, area, true positives.

FALSE_POSITIVES = (0.001, 0.01)
"""False positive rates at which true positives are reported."""
CURVE = np.geomspace(1e-3, 1, 31)
"""False positive rates of the curve that is kept."""


def curve_of(members: np.ndarray, others: np.ndarray) -> JsonObject:
    """What scores, (n,) and (m,), neither empty, that are higher for likely members can show.

    Returns:
        How many ``members`` and ``others``; ``auc``, the area under the ROC curve (0.5 is a coin, 1
        knows every member), and its standard ``error`` (Hanley and McNeil, 1982); ``at``, by
        false positive rate, the ``value`` of the true positive rate with the ends of its 95 %
        interval (Clopper and Pearson), where a rate below 1/m accuses nobody but those above every
        non-member; and the ``curve``: true positive rates at those of :data:`CURVE`.
    """
    n, m, auc = len(members), len(others), _area(members, others)
    both, twice = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (n - 1) * (both - auc**2) + (m - 1) * (twice - auc**2)
    return {
        "members": n,
        "others": m,
        "auc": auc,
        "error": float(np.sqrt(max(0.0, variance) / (n * m))),
        "at": {
            f"{rate:g}": _interval(_found(members, others, rate), n) for rate in FALSE_POSITIVES
        },
        "curve": [_found(members, others, rate) / n for rate in CURVE],
    }


def _area(members: np.ndarray, others: np.ndarray) -> float:
    """The share of pairs in which the member has the higher score; ties count half."""
    ordered = np.sort(others)
    below, upto = (np.searchsorted(ordered, members, side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(others))


def _found(members: np.ndarray, others: np.ndarray, rate: float) -> int:
    """Members above the lowest threshold that accuses no more than this share of the others."""
    allowed = int(rate * len(others) + 1e-9)
    if allowed >= len(others):
        return len(members)
    return int((members > np.sort(others)[::-1][allowed]).sum())


def _interval(found: int, n: int) -> dict[str, float]:
    """The share of ``found`` among n, and the ends of its interval, all from 0 to 1."""
    from scipy.stats import binomtest  # late: it takes a second

    low, high = binomtest(found, n).proportion_ci()
    return {"value": found / n, "low": float(low), "high": float(high)}


# Membership inference against a classifier: was this sample among those that it was trained on?
#
# Two attacks: the loss alone (Yeom et al., CSF 2018), and an offline likelihood ratio that needs
# no shadow models, since in one round other clients' uploads have not seen it: its confidence
# under the attacked model against a Gaussian fit to its confidences under theirs (Carlini et al.,
# S&P 2022; Watson et al., ICLR 2022). As for few references there, all samples share one
# variance, so what is compared is the distance to their mean.

BATCH = 256


def confidences(model: nn.Module, shard: Shard) -> np.ndarray:
    """log p/(1 - p) of each sample's class, (n,), float64: the higher, the smaller the loss.

    It orders samples as the cross-entropy does, and is nearer to a Gaussian (Carlini et al.).
    """
    logits = logits_of(model, shard.images, BATCH).cpu().double()
    own = logits.gather(1, shard.labels[:, None]).squeeze(1)
    rest = logits.scatter(1, shard.labels[:, None], -torch.inf).logsumexp(1)
    scores: Tensor = (own - rest).clamp(-1e6, 1e6)
    return scores.numpy()


def balanced(members: np.ndarray, others: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of as many members as others, class beside class, given the classes of both.

    Without that an attack on a client of few classes would separate classes, not members.
    """
    stream = numpy_generator(seed, "privacy/balanced")
    kept: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for label in np.unique(members):
        places = [np.flatnonzero(labels == label) for labels in (members, others)]
        size = min(map(len, places))
        for chosen, there in zip(kept, places, strict=True):
            chosen.append(np.sort(stream.choice(there, size, replace=False)))
    return np.concatenate(kept[0]), np.concatenate(kept[1])


def attack(
    own: tuple[np.ndarray, np.ndarray], references: Sequence[tuple[np.ndarray, np.ndarray]]
) -> dict[str, JsonObject]:
    """Both attacks' curves; the likelihood ratio only where there are references.

    Args:
        own: confidences of members and others under the attacked model.
        references: the same under models that have seen none of them; NaN for a sample that one
            has seen.
    """
    found = {"loss": curve_of(*own)}
    if references:
        hardness = [np.nanmean(np.stack(each), axis=0) for each in zip(*references, strict=True)]
        members, others = (mine - mean for mine, mean in zip(own, hardness, strict=True))
        found["ratio"] = curve_of(members, others)
    return found


# What was measured of a run's privacy, as lines of at most 80 columns.


def lines(found: JsonObject) -> Iterator[str]:
    """Tables of the attacks and of the images, and how to read them."""
    attacked = [(f"client {u['client']}", u["model"], u["attacks"]) for u in found["uploads"]]
    if found["global"]:
        attacked.append(("global", "", found["global"]["attacks"]))
    if attacked:
        yield "membership  model        attack samples  AUC   +-     TPR at FPR 1 % (95 %)"
        for who, model, attacks in attacked:
            for name, curve in attacks.items():
                yield _attack(who, model, name, curve)
        yield "AUC 0.5: a coin; 1: every member known. ratio: likelihood ratio."
    if found["images"]:
        yield "images      made       images  to own data  to test data  ratio  nearer to own"
        for row in found["images"]:
            yield (
                f"client {row['client']:<4} {row['kind']:<10}{row['images']:>7}"
                f"{row['to_train']:>13.4f}{row['to_test']:>14.4f}{row['ratio']:>7.2f}"
                f"{row['nearer']:>15.0%}"
            )
        yield "ratio of median distances: near 1 is new, far below 1 repeats training images"
    if not attacked and not found["images"]:
        yield "no upload here is a whole classifier, a decoder or condensed images"


def _attack(who: str, model: str, name: str, curve: Mapping[str, Any]) -> str:
    at = curve["at"]["0.01"]
    spread = f"{at['value']:.1%} ({at['low']:.1%} to {at['high']:.1%})"
    return (
        f"{who[:11]:<12}{model[:12]:<13}{name:<7}{curve['members']:>7}"
        f"  {curve['auc']:.3f} {2 * curve['error']:.3f}  {spread}"
    )


DRAWN = 200
"""Images drawn from each client's decoder."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A run, as it is attacked."""

    dataset: Dataset
    lists: Sequence[np.ndarray]
    """Each client's indices into the training split."""
    trainings: Sequence[Training]
    uploads: Mapping[int, Mapping[str, Tensor]]
    """What clients uploaded last, by client id."""
    run_spec: RunSpec
    model: nn.Module | None
    """The global model, if there is a classifier that all share."""


def measure(subject: Subject) -> JsonObject:
    """Both attacks on every classifier and on the global model, and the distances of images.

    Raises:
        ValueError: an upload is not what its training uploads.
    """
    scores = {k: _scores(subject, model) for k, model in _classifiers(subject)}
    found: JsonObject = {"false_positives": CURVE.tolist(), "uploads": [], "global": None}
    for k, own in scores.items():
        judges = {other: theirs for other, theirs in scores.items() if other != k}
        about = _attacked(subject, subject.lists[k], own, judges)
        found["uploads"].append({"client": k, "model": subject.trainings[k].model, **about})
    if subject.model is not None:
        own = _scores(subject, subject.model.eval())
        trained = [subject.lists[k] for k in sorted(subject.uploads)]  # no newcomer's
        everyone = np.concatenate(trained or [*subject.lists])
        found["global"] = _attacked(subject, everyone, own, scores)
    found["images"] = [*_images(subject)]
    return found


Scores = tuple[np.ndarray, np.ndarray]
"""Confidences on the whole training and the whole test split."""


def _classifiers(subject: Subject) -> Iterator[tuple[int, nn.Module]]:
    for k, tensors in subject.uploads.items():
        training = subject.trainings[k]
        if isinstance(training, ClassifierConfig):
            model = starting_classifier(training, training.answered(subject.run_spec))
            if {f"classifier.{name}" for name in state_sent(model)} <= tensors.keys():
                load_prefixed(model, tensors, "classifier", sender=f"client {k}")
                yield k, model.eval()


def _scores(subject: Subject, model: nn.Module) -> Scores:
    splits, classes = (subject.dataset.train, subject.dataset.test), subject.dataset.num_classes
    train, test = (
        confidences(model, Shard.from_split(split, np.arange(len(split.labels)), classes))
        for split in splits
    )
    return train, test


def _attacked(
    subject: Subject, own: np.ndarray, scores: Scores, judges: Mapping[int, Scores]
) -> JsonObject:
    """Both attacks on a model whose members are the samples ``own``.

    ``judges``: the scores under every other client's model, by client id.
    """
    dataset = subject.dataset
    chosen, others = balanced(dataset.train.labels[own], dataset.test.labels, subject.run_spec.seed)
    if not len(chosen):
        return {"attacks": {}}
    members = own[chosen]
    references: list[Scores] = []
    for k, (train, test) in judges.items() if len(judges) > 1 else ():
        # A test sample is judged by those that judge the member of its class beside it: other
        # judges would know its class better or worse, and that would look like membership.
        seen = np.isin(members, subject.lists[k])
        member, other = (np.where(seen, np.nan, s) for s in (train[members], test[others]))
        references.append((member, other))
    return {"attacks": attack((scores[0][members], scores[1][others]), references)}


def _images(subject: Subject) -> Iterator[JsonObject]:
    """Distances of what each client's decoder draws, and of condensed images."""
    train, test = subject.dataset.train, subject.dataset.test
    for k, tensors in subject.uploads.items():
        images = _made(subject, k, tensors)
        own = subject.lists[k]
        chosen, others = balanced(train.labels[own], test.labels, subject.run_spec.seed)
        if images is None or not len(images) or not len(chosen):
            continue
        real = (train.images[own[chosen]], test.images[others])
        about = copies(*map(as_bytes, (images, *map(torch.from_numpy, real))))
        kind = "drawn" if isinstance(subject.trainings[k], GeneratorConfig) else "condensed"
        yield {"client": k, "kind": kind, **about}


def _made(subject: Subject, k: int, tensors: Mapping[str, Tensor]) -> Tensor | None:
    training = subject.trainings[k]
    if isinstance(training, CondensationConfig):
        return tensors.get("images")
    if not isinstance(training, GeneratorConfig):
        return None
    whole = starting_generator(training, subject.run_spec)
    part = whole if training.upload == "cvae" else whole.decoder
    load_prefixed(part, tensors, training.upload, sender=f"client {k}")
    stream = torch_generator(subject.run_spec.seed, "privacy/drawn", k)
    held = torch.from_numpy(subject.dataset.train.labels[subject.lists[k]])
    labels = held[torch.randint(len(held), (DRAWN,), generator=stream)]
    noise = torch.randn(DRAWN, training.latent, generator=stream)
    return sample(whole.decoder.eval(), labels, noise)
