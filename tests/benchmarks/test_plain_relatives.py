"""The plain loops of FedAvg's relatives come to what the methods come to."""

import plain_relatives
import plain_rounds
import pytest
import torch
from torch import nn

from fl.fusion.feature_generation import GeneratorFitConfig
from fl.methods import fedbn, feddyn, moon
from fl.methods.fedavg import FedAvgConfig
from fl.methods.fedbn import FedBNConfig, LocalFedBN
from fl.methods.feddyn import FedDynConfig, LocalFedDyn
from fl.methods.fedgen import FedGenConfig, LocalFedGen
from fl.methods.moon import LocalMoon, MoonConfig
from fl.training.classifier import ClassifierConfig
from tests.benchmarks.plain_loops import (
    SOME,
    THREE_A_CLASS,
    assert_close,
    in_our_layout,
    ours,
    plainly,
    weights,
)

LOCAL = {"model": "cnn", "width": 0.3, "epochs": 3, "lr": 0.05, "batch_size": 99}
WITH_NORM = {**LOCAL, "model": "convnet", "width": 0.05}
RELATIVES = {
    "moon": (moon, MoonConfig(num_large=2, classifier=LocalMoon(**LOCAL, mu=5.0))),
    "feddyn": (feddyn, FedDynConfig(num_large=2, classifier=LocalFedDyn(**LOCAL, alpha=0.1))),
    "fedbn": (fedbn, FedBNConfig(num_large=2, classifier=LocalFedBN(**WITH_NORM))),
}


@pytest.mark.parametrize("name", RELATIVES)
def test_the_relatives_loops_are_the_methods(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plain_rounds, plain_relatives):
        monkeypatch.setattr(module, "new_model", in_our_layout)
    method, config = RELATIVES[name]
    *_, found = plainly(plain_rounds.PLAYS[name], config, THREE_A_CLASS, 3)
    *_, average = plainly(plain_rounds.averaging, config, THREE_A_CLASS, 3)
    (member,) = ours(method, config, THREE_A_CLASS, 3).members  # type: ignore[union-attr]
    apart = weights(found) - weights(member)
    assert apart.norm() < 0.01 * (weights(average) - weights(member)).norm()


def test_fedgens_loop_is_fedavgs_without_its_terms_and_learns_with_them() -> None:
    def after(**weights_of_terms: float) -> nn.Module:
        local = LocalFedGen(**LOCAL, **weights_of_terms)
        config = FedGenConfig(classifier=local, generator=GeneratorFitConfig(steps=2))
        *_, found = plainly(plain_rounds.PLAYS["fedgen"], config, SOME, 2)
        return found

    config = FedAvgConfig(num_large=3, classifier=ClassifierConfig(**LOCAL))
    *_, average = plainly(plain_rounds.averaging, config, SOME, 2)
    assert_close(after(recognition=0.0, imitation=0.0), average)
    assert not torch.allclose(weights(after()), weights(average), atol=1e-3)
    assert weights(after()).isfinite().all()
