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
from fl.metrics.teachers import describe_oracle
from fl.models import build_classifier
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
        dataset: its training split makes the oracle, its test split tells how good that is.
        synthetic: an outcome's; see :class:`fl.server.Outcome`.
        device: where the oracle trains.

    Returns:
        ``accuracy`` on the test split, and what :func:`describe_oracle` says.
    """
    with seeded(SEED, "oracle/start"):
        network = build_classifier("cnn", dataset.image_shape, dataset.num_classes).to(device)
    train_on_real(network, dataset.train, STEPS, "oracle/order")
    kept, test = synthetic["kept"].cpu(), dataset.test
    answers = _ask(network, torch.from_numpy(np.ascontiguousarray(test.images))).argmax(1)
    drawn = _ask(network, synthetic["images"].cpu()[kept])
    labels = synthetic["labels"].cpu()[kept]
    return {
        "accuracy": float((answers.numpy() == test.labels).mean()),
        **describe_oracle(drawn, labels, synthetic.get("teacher_logits")),
    }


@torch.no_grad()
def _ask(network: nn.Module, images: Tensor) -> Tensor:
    """Logits, on the host, of images, which are too."""
    device = next(network.parameters()).device
    return torch.cat([network(pixels(rows, device)).cpu() for rows in images.split(ROWS)])


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


class FeatureNetwork(nn.Module):
    """Three 3x3 convolutions and a mean over the image: (B, C, H, W) in [0, 1] to (B, FEATURES)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, FEATURES, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            nn.Flatten(),
        )
        self.head = nn.Linear(FEATURES, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes), for the network's own training."""
        return self.head(self.features(images))

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """Features (N, FEATURES), on the host, of images (N, C, H, W) in [0, 1]."""
        device = self.head.weight.device
        return torch.cat([self.features(part.to(device)).cpu() for part in images.split(512)])


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
        network = FeatureNetwork(real.images.shape[1], num_classes).to(device)
    train_on_real(network, real, EPOCHS * -(-len(real.labels) // BATCH), "fid/order")
    reference, generated = network.describe(images), network.describe(synthetic["images"])
    noise = torch.randn(images.shape, generator=torch_generator(SEED, "fid/noise")).clamp(0, 1)
    halves = reference[torch.randperm(len(images), generator=torch_generator(SEED, "fid/halves"))]
    return {
        "kept": frechet_distance(reference, generated[synthetic["kept"].cpu()]),
        "generated": frechet_distance(reference, generated),
        "noise": frechet_distance(reference, network.describe(noise)),
        "real": frechet_distance(*halves.tensor_split(2)),
        "features": NAME,
    }
