"""What the tests of DENSE and Co-Boosting share: tiny models, and what holds of a run of either."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fl.fusion.inversion import InversionConfig
from fl.methods.method import Method
from fl.models.ensemble import Ensemble
from fl.training.classifier import ClassifierConfig
from tests.fl.methods.tiny import tiny_federation
from tests.fl.toy import Told, into, named

CLASSIFIER = ClassifierConfig(model="cnn", width=0.3, epochs=1)
INVERSION = InversionConfig(batch_size=8, steps=2, width=0.05, latent=8)


class Linear(nn.Module):
    """A classifier of 4x4 images in three classes, with normalised pixels."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.norm = nn.BatchNorm2d(1)
            self.linear = nn.Linear(16, 3)
        self.norm.running_mean += 0.3

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.norm(images).flatten(1))


def ensemble() -> Ensemble:
    return Ensemble([Linear(1), Linear(2)]).eval().requires_grad_(False)


def images(count: int = 5) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.rand(count, 1, 4, 4, generator=stream), torch.arange(count) % 3


def probabilities(logits: Tensor, temperature: float = 1.0) -> list[float]:
    powers = [math.exp(v / temperature) for v in logits.tolist()]
    return [p / sum(powers) for p in powers]


def kl(teacher: list[float], student: list[float]) -> float:
    return sum(q * math.log(q / p) for q, p in zip(teacher, student, strict=True))


def weights(model: nn.Module) -> Tensor:
    """All of a model's weights in a row."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def check_that_the_pool_grows_and_is_learned_once_per_epoch(method: Method, config: Any) -> None:
    """For settings of three epochs, each of which makes eight images."""
    seen: list[Told] = []
    clients, server = tiny_federation(
        config, assign=method.assign, num_clients=4, listener=into(seen)
    )
    outcome = method.run(clients, server, config)
    assert len(outcome.synthetic["images"]) == 3 * 8
    assert len(outcome.epochs) == 3
    epochs = named(seen, "epoch")
    assert [e["epoch"] for e in epochs] == [1, 2, 3]
    assert [e["accuracy"] for e in epochs] == [e.accuracy for e in outcome.epochs]
    assert server.evaluate(outcome.model) == outcome.epochs[-1]
    assert not outcome.model.training
    assert all(p.requires_grad for p in outcome.model.parameters())
