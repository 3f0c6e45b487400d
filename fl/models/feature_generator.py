"""FedGen's generator (Zhu et al., ICML 2021): features of a class, as its classifiers make them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

NOISE = 32
"""Dimensions of the noise, uniform in [0, 1)."""
HIDDEN = 256


class FeatureGenerator(nn.Module):
    """Features (B, d) of noise and a one-hot class, (B, NOISE + classes), by one hidden layer.

    Initialised from torch's global stream.
    """

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layers = nn.Sequential(
            nn.Linear(NOISE + num_classes, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, features),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, d) of what :func:`asked` made."""
        return self.layers(x)


def asked(labels: Tensor, num_classes: int, stream: torch.Generator) -> Tensor:
    """What a generator takes for these classes, (B, NOISE + classes), with fresh noise."""
    noise = torch.rand(len(labels), NOISE, generator=stream)
    return torch.cat([noise, one_hot(labels, num_classes).float()], dim=1)
