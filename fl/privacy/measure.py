"""What a run's uploads and its global model tell of the samples they were made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fl.condensation.config import CondensationConfig
from fl.data.datasets import Dataset
from fl.data.shard import Shard
from fl.exchange import load_prefixed
from fl.federation import RunSpec, Training
from fl.json_values import JsonObject
from fl.models.cvae import sample
from fl.models.state import state_sent
from fl.privacy.copies import as_bytes, copies
from fl.privacy.curve import CURVE
from fl.privacy.membership import attack, balanced, confidences
from fl.seeding import torch_generator
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig, starting_generator

DRAWN = 200
"""Images drawn from each client's decoder."""
Uploads = Mapping[int, Mapping[str, Tensor]]
"""What clients uploaded last, by client id."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A run, as it is attacked."""

    dataset: Dataset
    lists: Sequence[np.ndarray]
    """Each client's indices into the training split."""
    trainings: Sequence[Training]
    uploads: Uploads
    run_spec: RunSpec
    model: nn.Module | None
    """The global model, if there is a classifier that all share."""


def measure(subject: Subject) -> JsonObject:
    """Both attacks on every classifier and on the global model, and the distances of images.

    Raises:
        ValueError: an upload is not what its training uploads.
    """
    models = dict(_classifiers(subject))
    scores = {k: _scores(subject, model) for k, model in models.items()}
    found: JsonObject = {
        "false_positives": CURVE.tolist(),
        "uploads": [
            {
                "client": k,
                "model": subject.trainings[k].model,
                **_attacked(subject, subject.lists[k], scores[k], scores, [k]),
            }
            for k in models
        ],
        "global": None,
        "images": [{"client": k, **about} for k, about in _images(subject)],
    }
    if subject.model is not None:
        everyone = np.concatenate([*subject.lists])
        own = _scores(subject, subject.model.eval())
        found["global"] = _attacked(subject, everyone, own, scores, [])
    return found


Scores = tuple[np.ndarray, np.ndarray]
"""Confidences on the whole training and the whole test split."""


def _classifiers(subject: Subject) -> Iterator[tuple[int, nn.Module]]:
    for k, tensors in subject.uploads.items():
        training = subject.trainings[k]
        if isinstance(training, ClassifierConfig):
            model = starting_classifier(training, subject.run_spec)
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
    subject: Subject,
    own: np.ndarray,
    scores: Scores,
    of_clients: Mapping[int, Scores],
    without: Sequence[int],
) -> JsonObject:
    """Both attacks on a model whose members are the samples ``own``."""
    dataset = subject.dataset
    chosen, others = balanced(dataset.train.labels[own], dataset.test.labels, subject.run_spec.seed)
    if not len(chosen):
        return {"attacks": {}}
    members = own[chosen]
    references: list[Scores] = []
    for k, (train, test) in of_clients.items():
        if k not in without and len(of_clients) > 1 + len(without):
            # A test sample is judged by those that judge the member of its class beside it: other
            # judges would know its class better or worse, and that would look like membership.
            seen = np.isin(members, subject.lists[k])
            judged = (train[members], test[others])
            references.append(
                (np.where(seen, np.nan, judged[0]), np.where(seen, np.nan, judged[1]))
            )
    curves = attack((scores[0][members], scores[1][others]), references)
    return {"attacks": {name: curve.to_json() for name, curve in curves.items()}}


def _images(subject: Subject) -> Iterator[tuple[int, JsonObject]]:
    """Distances of what each client's decoder draws, and of condensed images."""
    train, test = subject.dataset.train, subject.dataset.test
    for k, tensors in subject.uploads.items():
        images = _made(subject, k, tensors)
        own = subject.lists[k]
        chosen, others = balanced(train.labels[own], test.labels, subject.run_spec.seed)
        if images is None or not len(images) or not len(chosen):
            continue
        real = (train.images[own[chosen]], test.images[others])
        about = copies(as_bytes(images), *map(torch.from_numpy, real))
        kind = "drawn" if isinstance(subject.trainings[k], GeneratorConfig) else "condensed"
        yield k, {"kind": kind, **asdict(about), "ratio": about.ratio}


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
