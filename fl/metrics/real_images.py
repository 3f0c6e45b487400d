"""Networks trained on the real training images, by which synthetic ones are measured."""

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.data.datasets import Split
from fl.training.loop import Step, minimise
from fl.training.optimizers import Adam

BATCH = 64
Network = TypeVar("Network", bound=nn.Module)


def train_on_real(network: Network, real: Split, steps: int, order: torch.Generator) -> Network:
    """Trains the network to classify the real images by so many steps of Adam; in eval mode.

    ``order`` draws the images' order, anew for each time that all have been seen.
    """
    parameters = list(network.parameters())
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
    return network.eval()


def pixels(images: Tensor, device: torch.device) -> Tensor:
    """Images in [0, 1] on the device, of such or of uint8 ones."""
    moved = images.to(device)
    return moved.float() / 255 if moved.dtype == torch.uint8 else moved
