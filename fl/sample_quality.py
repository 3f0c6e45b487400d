"""What synthetic images are worth: their Fréchet distance to real ones, and an oracle's answers.

The distance is between features of a network that is trained here.

FID proper takes its features from InceptionV3 trained on ImageNet, which has to be downloaded. Here
a small network is trained on the run's own real training images, always from the same weights in
the same order. So a distance compares generators on one data set and one training split. It is no
InceptionV3 FID and cannot be compared with printed ones, whose scale is another.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.data.datasets import Dataset, Split
from fl.inputs import as_inputs
from fl.json_files import JsonObject
from fl.models.registry import build_classifier
from fl.seeding import seeded, torch_generator
from fl.training.optimizers import Adam
from fl.training.recipe import Step, minimise

# Networks trained on the real training images, by which synthetic ones are measured.

BATCH = 64
SEED = 0
"""Seed of the networks: the same for every run, so that runs of all seeds are measured alike."""


def train_on_real(network: nn.Module, real: Split, steps: int, purpose: str) -> None:
    """Trains the network to classify the real images by so many steps of Adam; in eval mode.

    ``purpose`` names the stream of the images' order, anew for each time that all have been seen.
    """
    parameters, order = list(network.parameters()), torch_generator(SEED, purpose)
    device = parameters[0].device
    images = torch.from_numpy(np.ascontiguousarray(real.images))
    labels = torch.from_numpy(real.labels)

    def batches() -> Iterator[Tensor]:
        while True:
            yield from torch.randperm(len(labels), generator=order).split(BATCH)

    def losses() -> Iterator[Step]:
        for rows in islice(batches(), steps):
            logits = network(pixels(images[rows], device))
            yield Step(F.cross_entropy(logits, labels[rows].to(device)))

    minimise(losses(), [parameters], Adam(lr=1e-3).for_cohort([parameters]))
    network.eval()


def pixels(images: Tensor, device: torch.device) -> Tensor:
    """Images in [0, 1] on the device, of such or of uint8 ones."""
    moved = images.to(device)
    return moved.float() / 255 if moved.dtype == torch.uint8 else moved


# The oracle: a network trained on the real training images, which says what a synthetic one shows.
#
# It is the same for all runs of a data set. No method ever hears of its answers.

STEPS = 2000
ROWS = 1024
"""Images that are asked about together."""


def ask_oracle(dataset: Dataset, synthetic: dict[str, Tensor], device: torch.device) -> JsonObject:
    """What FedMHO's CNN says of the synthetic images that were kept, and of the method's teacher.

    Args:
        dataset: its training split makes the oracle, its test split says how good that is.
        synthetic: an outcome's; see :class:`fl.server.Outcome`.
        device: where the oracle trains.

    Returns:
        ``accuracy`` on the test split, and what :func:`describe_oracle` says.
    """
    with seeded(SEED, "oracle/start"):
        network = build_classifier("cnn", dataset.image_shape, dataset.num_classes).to(device)
    train_on_real(network, dataset.train, STEPS, "oracle/order")
    kept, test = synthetic["kept"].cpu(), dataset.test
    answers = ask(network, torch.from_numpy(np.ascontiguousarray(test.images)), ROWS).argmax(1)
    drawn = ask(network, synthetic["images"].cpu()[kept], ROWS)
    labels = synthetic["labels"].cpu()[kept]
    return {
        "accuracy": float((answers.numpy() == test.labels).mean()),
        **describe_oracle(drawn, labels, synthetic.get("teacher_logits")),
    }


@torch.no_grad()
def ask(network: nn.Module, images: Tensor, rows: int) -> Tensor:
    """A network's answers to images in [0, 1] or of uint8, so many ``rows`` at once; on the host,
    as images may be more than a GPU has memory for."""
    device = next(network.parameters()).device
    return torch.cat([network(pixels(part, device)).cpu() for part in images.split(rows)])


# How far a teacher can be trusted. Where it disagrees with a synthetic label, either may be wrong:
# a decoder does draw a 4 that is a 9. So the oracle is asked beside it.


def describe_teacher(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """A teacher's answers against the synthetic labels, each figure 0 to 1.

    A teacher that disagrees with the labels does little harm while it is unsure, and much when it
    is confident: distillation then pulls the student towards its mistakes.

    Args:
        logits: (N, classes), the teacher's.
        labels: (N,), the classes the samples were drawn for; on any device, as large columns may
            be on the host.

    Returns:
        ``agreement`` with the labels, mean ``confidence`` (the largest probability), and
        ``confidence_when_wrong``, 0 where it is never wrong.
    """
    top, answer = logits.softmax(1).max(1)
    wrong = answer != labels.to(answer.device)
    return {
        "agreement": 1 - wrong.float().mean().item(),
        "confidence": top.mean().item(),
        "confidence_when_wrong": _mean(top[wrong]),
    }


def describe_oracle(oracle: Tensor, labels: Tensor, teacher: Tensor | None = None) -> JsonObject:
    """The oracle's answers against the synthetic labels, and the teacher's against both.

    Args:
        oracle: (N, classes), logits of a network trained on real images.
        labels: (N,), the classes the samples were drawn for.
        teacher: (N, classes), the teacher's logits; None for a method without one.

    Returns:
        As :func:`describe_teacher`, of the oracle. With a teacher also ``teacher``:
        :func:`describe_teacher` with the oracle's answers in place of the labels, and
        ``agreement_where_confirmed``, the share of samples on which the teacher gives the label, of
        those on which the oracle does (0 if it does nowhere).
    """
    labels, oracle = labels.cpu(), oracle.cpu()
    found: JsonObject = {**describe_teacher(oracle, labels)}
    if teacher is not None:
        answers, teacher = oracle.argmax(1), teacher.cpu()
        right = (teacher.argmax(1) == labels)[answers == labels]
        found["teacher"] = {
            **describe_teacher(teacher, answers),
            "agreement_where_confirmed": _mean(right),
        }
    return found


def _mean(values: Tensor) -> float:
    return values.to(torch.float32).mean().item() if len(values) else 0.0


FEATURES = 128
EPOCHS = 3
NAME = f"{FEATURES} features of a small CNN trained on the real training images; not InceptionV3"


def frechet_distance(one: Tensor, other: Tensor) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) of features (N, D) and (M, D), N, M > 1."""
    one, other = one.double(), other.double()
    first, second = one.T.cov(), other.T.cov()
    values, vectors = torch.linalg.eigh(first)
    root = vectors @ (values.clamp(min=0).sqrt()[:, None] * vectors.T)
    # (C1 C2)^(1/2) has the trace of (R C2 R)^(1/2), where R is C1's root; that one is symmetric.
    cross = torch.linalg.eigvalsh(root @ second @ root).clamp(min=0).sqrt().sum()
    means = (one.mean(0) - other.mean(0)).square().sum()
    return (means + first.trace() + second.trace() - 2 * cross).item()


def feature_network(channels: int) -> nn.Sequential:
    """Three 3x3 convolutions and a mean over the image: (B, C, H, W) in [0, 1] to (B, FEATURES)."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, FEATURES, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        nn.Flatten(),
    )


def measure(
    real: Split, num_classes: int, synthetic: dict[str, Tensor], device: torch.device
) -> JsonObject:
    """Distances to the real training images.

    Args:
        real: the training split.
        num_classes: its classes.
        synthetic: ``images`` (N, C, H, W) in [0, 1] and ``kept`` (M,), indices into them.
        device: where the network trains.

    Returns:
        The distances of the synthetic images that the filter ``kept`` and of all ``generated``
        ones; as the two ends of the scale those of ``noise`` and between two halves of the ``real``
        images; and ``features``, the name of what they are measured with.
    """
    images = as_inputs(np.ascontiguousarray(real.images))
    with seeded(SEED, "fid/start"):
        features = feature_network(real.images.shape[1])
        network = nn.Sequential(features, nn.Linear(FEATURES, num_classes)).to(device)
    train_on_real(network, real, EPOCHS * -(-len(real.labels) // BATCH), "fid/order")
    noise = torch.randn(images.shape, generator=torch_generator(SEED, "fid/noise")).clamp(0, 1)
    reference, generated, of_noise = (
        ask(features, part, 512) for part in (images, synthetic["images"], noise)
    )
    halves = reference[torch.randperm(len(images), generator=torch_generator(SEED, "fid/halves"))]
    return {
        "kept": frechet_distance(reference, generated[synthetic["kept"].cpu()]),
        "generated": frechet_distance(reference, generated),
        "noise": frechet_distance(reference, of_noise),
        "real": frechet_distance(*halves.tensor_split(2)),
        "features": NAME,
    }
