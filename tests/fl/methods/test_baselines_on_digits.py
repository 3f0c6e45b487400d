"""Do the baselines do their job? Four clients on 600 digits, one set of uploads for all."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fl.data.datasets import Dataset, load
from fl.exchange import Upload
from fl.federation import Job
from fl.fusion.inversion import DistillationConfig, InversionConfig
from fl.methods.fedcvae_kd import RegressionConfig
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.fl.methods.tiny import NoStore, tiny_data, tiny_federation

CHANCE = 0.1
TRAIN = 600
VOTES: dict[str, Any] = {
    "classifier": ClassifierConfig(model="cnn", width=1.0, epochs=30, lr=0.02),
    "num_large": 4,
}
INVERSION = InversionConfig(batch_size=64, steps=10, width=0.125)
CVAES: dict[str, Any] = {
    "generator": GeneratorConfig(epochs=40),
    "num_large": 0,  # the large ones take minutes
    "num_samples": 1500,
    "global_model": "cnn",
    "global_width": 1.0,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": VOTES,
    "feddf": VOTES,
    "dense": {
        **VOTES,
        "inversion": INVERSION,
        "kd": DistillationConfig(epochs=20, lr=0.03, batch_size=64),
    },
    "co-boosting": {
        **VOTES,
        "inversion": INVERSION,
        "kd": DistillationConfig(
            epochs=15, lr=0.02, batch_size=64, temperature=4.0, weight_decay=1e-4
        ),
    },
    "fedcvae-ens": CVAES,
    "fedcvae-kd": {
        **CVAES,
        "large_model": "cvae-small",
        "large_width": 1.0,
        "decoder": RegressionConfig(num_samples=1500),
    },
}


class Memory(NoStore):
    """Keeps uploads for the methods that follow."""

    def __init__(self) -> None:
        self._packed: dict[str, Upload] = {}

    def key(self, job: Job) -> str:
        return f"{job.client.id} {job.client.training} {job.run_spec}"

    def get(self, key: str, client: int) -> Upload | None:
        return self._packed.get(key)

    def put(self, key: str, client: int, packed: Upload) -> None:
        self._packed[key] = packed


MEMORY = Memory()


@cache
def digits() -> Dataset:
    return tiny_data(train=TRAIN, test=360)


@cache
def outcome(name: str) -> Outcome:
    method = get_method(name)
    config = method.config(**OPTIONS[name])
    clients, server = tiny_federation(
        config, assign=method.assign, num_clients=4, alpha=0.2, data=digits(), store=MEMORY
    )
    more: dict[str, Any] = {"auxiliary": unseen_digits()} if method.auxiliary else {}
    if not method.one_shot:
        more["rounds"] = Rounds(1)
    return method.run(clients, server, config, **more)


def unseen_digits() -> torch.Tensor:
    """Images that no client has, standing in for another data set, which tests may not need."""
    images = load("digits", Path()).train.images
    known = {image.tobytes() for image in digits().train.images}
    return torch.stack(
        [torch.from_numpy(i).float() / 255 for i in images if i.tobytes() not in known]
    )


def last(name: str) -> float:
    return outcome(name).epochs[-1].accuracy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feddf", "dense", "co-boosting", "fedcvae-ens", "fedcvae-kd"])
def test_a_baseline_beats_chance_and_the_plain_average(name: str) -> None:
    assert last("fedavg") > 3 * CHANCE
    assert last(name) > last("fedavg")
    assert last(name) > outcome(name).start.accuracy
