"""The oracle: a network trained on the real training images, which says what a synthetic one shows.

It is the same for all runs of a data set. No method ever hears of its answers.
"""

import numpy as np
import torch
from torch import Tensor, nn

from fl.data.datasets import Dataset, Split
from fl.json_values import JsonObject
from fl.metrics.real_images import pixels, train_on_real
from fl.metrics.teachers import describe_oracle
from fl.models import build_classifier
from fl.seeding import torch_generator, torch_seeded

STEPS = 2000
ROWS = 1024
"""Images that are asked about together."""
SEED = 0
"""Seed of the network: the same for every run."""


def train_oracle(real: Split, num_classes: int, device: torch.device) -> nn.Module:
    """FedMHO's CNN, trained on the device to classify the real images by Adam."""
    with torch_seeded(SEED, "oracle/start"):
        network = build_classifier("cnn", real.images.shape[1:], num_classes).to(device)
    return train_on_real(network, real, STEPS, torch_generator(SEED, "oracle/order"))


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
    return torch.cat([network(pixels(rows, device)).cpu() for rows in images.split(ROWS)])
