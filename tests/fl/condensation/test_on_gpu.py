"""Condensing on a GPU, under all its settings, to the same as on the CPU."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from fl.condensation.images import KINDS
from fl.condensation.task import condense, send_mean_logits
from fl.exchange import prefixed
from fl.federation import TaskInput, TaskOutput
from fl.training.task import train_many
from tests.fl.condensation.condensing import CONFIG, global_model, inputs
from tests.fl.devices import Where, assert_same, on_both
from tests.fl.toy import client, shard

pytestmark = pytest.mark.gpu

COMPANY = [shard(6, 0, 3), shard(0, 0, 0), shard(40, 2, 7)]
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "fedaf": {"collaboration": 0.5},
    "projections": {"collaboration": 0.5, "projections": 4},
    "feddm": {"gamma": 1.0, "rho": 1.0},
    "noise": {"init": "noise", "network": "eval", "clip": None},
    "dropout": {"model": "vgg9"},
    "bytes": {"pixels": "uint8"},
    **{kind: {"augment": (kind,)} for kind in KINDS},
}


def company(changes: Mapping[str, object], where: Where) -> list[TaskInput]:
    """Three clients, one of them without data, who were sent the global model and logits."""
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    goals = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    sent = {**prefixed("classifier", global_model(config)), "mean_logits": goals}
    return [
        replace(inputs(config, data), client=client(k, config), broadcast=sent, device=where.device)
        for k, data in enumerate(COMPANY)
    ]


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_clients_condense_to_the_same_bits(changes: Mapping[str, object]) -> None:
    assert_same(*on_both(lambda where: train_many(condense, company(changes, where))))


def test_clients_tell_the_same_mean_logits() -> None:
    def work(where: Where) -> list[TaskOutput]:
        return train_many(send_mean_logits, company({}, where))

    assert_same(*on_both(work))
