"""FedAdagrad, FedAdam, FedYogi (Reddi et al., ICLR 2021): FedAvg with an adaptive server.

The mean move of the round's clients is the server's gradient (Algorithm 2), for each weight::

    d = mean_k w_k - x
    m = beta1 m + (1 - beta1) d
    v = v + d^2                                       FedAdagrad
    v = beta2 v + (1 - beta2) d^2                     FedAdam
    v = v - (1 - beta2) d^2 sign(v - d^2)             FedYogi
    x = x + lr m / (sqrt(v) + tau)

BatchNorm's statistics are the clients' mean.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fl.bounds import Positive, Within
from fl.methods.averaging import Averaging, AveragingConfig, averaging_method
from fl.methods.method import LogUniform

Decay = Annotated[float, Within(0, 1, "[)")]


@dataclass(frozen=True, kw_only=True)
class FedAdagradConfig(AveragingConfig):
    """FedAdagrad's settings: FedAvg's, and the server's step."""

    server_lr: Positive = 0.01
    """Learning rate of the server."""
    beta1: Decay = 0.0
    """Decay of the mean of moves (the paper: 0; FedAdam and FedYogi 0.9)."""
    adaptivity: Positive = 1e-3
    """tau, which bounds the step of a weight that hardly moves (the paper: 0.001)."""


@dataclass(frozen=True, kw_only=True)
class FedAdamConfig(FedAdagradConfig):
    """FedAdam's settings: FedAdagrad's, and a decay."""

    beta1: Decay = 0.9
    """Decay of the mean of moves (the paper: 0.9)."""
    beta2: Decay = 0.99
    """Decay of the mean of their squares (the paper: 0.99)."""


@dataclass(frozen=True, kw_only=True)
class FedYogiConfig(FedAdamConfig):
    """FedYogi's settings: FedAdam's."""


def run(frame: Averaging, config: FedAdagradConfig) -> None:
    """Algorithm 2; the paper starts v at tau^2 or above, here at tau^2."""
    memory = {f"m.{key}": zero for key, zero in frame.zeros().items()}
    memory |= {f"v.{key}": zero + config.adaptivity**2 for key, zero in frame.zeros().items()}
    for updates in frame.play(memory):
        for (*_, key, mean), start, *_ in frame.moves(updates):
            step(mean, start, memory[f"m.{key}"], memory[f"v.{key}"], config)


@torch.no_grad()
def step(x: Tensor, start: Tensor, m: Tensor, v: Tensor, config: FedAdagradConfig) -> None:
    """Sets ``x``, the clients' mean, to the server's step from ``start``; m and v change too."""
    d = x - start
    m.lerp_(d, 1 - config.beta1)
    if not isinstance(config, FedAdamConfig):
        v.add_(d.square())
    elif isinstance(config, FedYogiConfig):
        v.sub_((1 - config.beta2) * d.square() * (v - d.square()).sign())
    else:
        v.lerp_(d.square(), 1 - config.beta2)
    x.copy_(start + config.server_lr * m / (v.sqrt() + config.adaptivity))


SPACE = {"server_lr": LogUniform(1e-3, 0.1), "adaptivity": LogUniform(1e-4, 0.1)}
KINDS = {"fedadagrad": FedAdagradConfig, "fedadam": FedAdamConfig, "fedyogi": FedYogiConfig}
METHODS = [
    averaging_method(name, config, run, server=SPACE, any_targets=True)
    for name, config in KINDS.items()
]
