"""The oracle: a network trained on the real training images, which says what a synthetic one shows.

It is the same for all runs of a data set. No method ever hears of its answers.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.data.datasets import Dataset, Split
from fl.json_values import JsonObject
from fl.metrics.teachers import describe_oracle
from fl.models import build_classifier
from fl.seeding import torch_generator, torch_seeded
from fl.training.loop import Step, minimise
from fl.training.optimizers import Adam

STEPS = 2000
BATCH = 64
ROWS = 1024
"""Images that are asked about together."""
SEED = 0
"""Seed of the network: the same for every run."""


def train_oracle(real: Split, num_classes: int, device: torch.device) -> nn.Module:
    """FedMHO's CNN, trained on the device to classify the real images by Adam."""
    with torch_seeded(SEED, "oracle/start"):
        network = build_classifier("cnn", real.images.shape[1:], num_classes).to(device)
    parameters = list(network.parameters())
    order = torch_generator(SEED, "oracle/order")
    labels = torch.from_numpy(real.labels)

    def batches() -> Iterator[Tensor]:
        while True:
            yield from torch.randperm(len(labels), generator=order).split(BATCH)

    def steps() -> Iterator[Step]:
        for rows, _ in zip(batches(), range(STEPS), strict=False):
            logits = network(_pixels(torch.from_numpy(real.images[rows.numpy()]), device))
            yield Step(F.cross_entropy(logits, labels[rows].to(device)))

    minimise(steps(), [parameters], Adam(lr=1e-3).for_cohort([parameters]))
    return network.eval()


@torch.no_grad()
def ask_oracle(dataset: Dataset, synthetic: dict[str, Tensor], device: torch.device) -> JsonObject:
    """What the oracle says of the synthetic images that were kept, and of the method's teacher.

    Args:
        dataset: its training split makes the oracle, its test split tells how good that is.
        synthetic: an outcome's; see :class:`fl.server.Outcome`.
        device: where the oracle trains.

    Returns:
        ``accuracy`` on the test split, and what :func:`describe_oracle` says.
    """
    with torch.enable_grad():
        network = train_oracle(dataset.train, dataset.num_classes, device)
    kept, test = synthetic["kept"].cpu(), dataset.test
    answers = _ask(network, torch.from_numpy(np.ascontiguousarray(test.images))).argmax(1)
    drawn = _ask(network, synthetic["images"].cpu()[kept])
    labels = synthetic["labels"].cpu()[kept]
    return {
        "accuracy": float((answers.numpy() == test.labels).mean()),
        **describe_oracle(drawn, labels, synthetic.get("teacher_logits")),
    }


def _ask(network: nn.Module, images: Tensor) -> Tensor:
    """Logits, on the host, of images, which are too."""
    device = next(network.parameters()).device
    return torch.cat([network(_pixels(rows, device)).cpu() for rows in images.split(ROWS)])


def _pixels(images: Tensor, device: torch.device) -> Tensor:
    """Images in [0, 1] on the device, of such or of uint8 ones."""
    moved = images.to(device)
    return moved.float() / 255 if moved.dtype == torch.uint8 else moved
