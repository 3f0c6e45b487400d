"""Methods that hold or correct weights, with a model of which a part is frozen."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fl.models.registry import register_model
from tests.fl.methods import averaged, personal_runs
from tests.fl.toy import same_bits
from tests.registries import registries_restored

SEEN: list[float] = []
"""The size of the frozen weights in each step of a client."""


class Frozen(nn.Module):
    """A random first layer that stays, and a trained head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(28 * 28, 8), nn.Linear(8, num_classes)
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            SEEN.append(float(self.first.weight.detach().norm()))
        logits: Tensor = self.head(self.first(x.flatten(1)).relu())
        return logits


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with registries_restored():
        register_model("frozen", lambda num_classes: Frozen(num_classes))
        yield


@pytest.mark.parametrize("method", ["feddyn", "scaffold", "ditto"])
def test_what_is_frozen_stays_and_the_rest_is_trained(method: str) -> None:
    local = {"model": "frozen", "epochs": 1, "lr": 0.05}
    if method == "ditto":
        config = personal_runs.settings(method, **local)
        start, (outcome, _) = personal_runs.start(config), personal_runs.play(method, config)
    else:
        config = averaged.settings(method, local)
        start, (outcome, _) = averaged.start(local), averaged.play(method, config, 3)
    assert outcome.model is not None
    own = next(m for m in outcome.model.modules() if isinstance(m, Frozen))
    assert same_bits({"w": own.first.weight}, {"w": start.first.weight})
    assert not torch.equal(own.head.weight, start.head.weight)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_no_weight_decay_moves_what_is_frozen(optimizer: str) -> None:
    local = {"model": "frozen", "lr": 0.01, "optimizer": optimizer, "weight_decay": 0.1}
    SEEN.clear()
    averaged.play("fedavg", averaged.settings("fedavg", local), 1)
    assert len(set(SEEN[-6:])) == 1  # the last client's steps
