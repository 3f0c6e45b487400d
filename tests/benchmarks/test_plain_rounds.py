"""The plain loops over rounds come to what the methods come to."""

from dataclasses import replace
from typing import Any

import plain_relatives
import plain_rounds
import pytest
import torch
from torch import Tensor, nn

from fl.condensation.task import CondensationConfig, radius
from fl.fusion.feature_generation import GeneratorFitConfig
from fl.fusion.fit import FitConfig
from fl.methods import fedaf, fedavg, fedbn, feddm, feddyn, moon
from fl.methods.fedaf import FedAFConfig
from fl.methods.fedavg import FedAvgConfig
from fl.methods.fedbn import FedBNConfig, LocalFedBN
from fl.methods.feddm import FedDMConfig
from fl.methods.feddyn import FedDynConfig, LocalFedDyn
from fl.methods.fedgen import FedGenConfig, LocalFedGen
from fl.methods.moon import LocalMoon, MoonConfig
from fl.training.classifier import ClassifierConfig
from tests.benchmarks.plain_loops import (
    PREPARED,
    SOME,
    THREE_A_CLASS,
    assert_close,
    in_our_layout,
    ours,
    plainly,
    weights,
)

CONDENSED = CondensationConfig(width=0.03, images_per_class=2, steps=3, lr=0.5, batch_size=3)
FIT = FitConfig(epochs=3, lr=0.05, optimizer="sgd", batch_size=99)
DM = FedDMConfig(condensation=CONDENSED, rho=0.0, clip=0.5, fusion=FIT)
AF = FedAFConfig(condensation=CONDENSED, gamma=1.0, collaboration=0.5, knowledge=1.0, fusion=FIT)


def test_averaging_is_fedavg() -> None:
    local = ClassifierConfig(model="cnn", width=0.3, epochs=3, lr=0.05, batch_size=99)
    config = FedAvgConfig(num_large=3, classifier=local)
    found = plainly(plain_rounds.averaging, config, SOME, 2)
    (member,) = ours(fedavg, config, SOME, 2).members  # type: ignore[union-attr]
    assert_close(found[-1], member)
    with pytest.raises(AssertionError):
        assert_close(found[0], member)


@pytest.mark.parametrize(("method", "config"), [(feddm, DM), (fedaf, AF)], ids=["feddm", "fedaf"])
def test_condensing_is_feddm_and_fedaf(
    method: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a second round, for which the model has to be the first one's.

    Whatever is drawn to start from is the first: whom they draw is the two ways' own.
    """
    monkeypatch.setattr(plain_rounds, "new_model", in_our_layout)
    monkeypatch.setattr(torch, "randint", lambda high, size, **_: torch.zeros(size).long())
    first, second = plainly(plain_rounds.condensing, config, THREE_A_CLASS, 2)
    for found, played in ((first, 1), (second, 2)):
        apart = weights(found) - weights(ours(method, config, THREE_A_CLASS, played))
        assert apart.norm() < 0.1 * (weights(second) - weights(first)).norm()


def test_a_network_of_a_step_is_as_far_away_as_the_settings_say() -> None:
    torch.manual_seed(0)
    model = plain_rounds.new_model(PREPARED, "convnet", 0.03)

    def apart(how: Any) -> Tensor:
        network = plain_rounds.moved(PREPARED, model, how)
        assert not any(p.requires_grad for p in network.parameters())
        return weights(network) - weights(model)

    assert not apart(DM.local).any()
    near = replace(DM, rho=2.0).local
    expected = radius(near, PREPARED.run_spec)
    assert apart(near).norm().item() == pytest.approx(expected, rel=1e-4)
    assert apart(replace(AF, gamma=0.5).local).any()


def test_the_loops_own_accuracy_is_the_share_of_right_answers() -> None:
    class Brightest(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :3]

    labels = torch.arange(600) % 3
    images = torch.eye(3)[labels].view(600, 1, 1, 3)
    wrong = labels.clone()
    wrong[:150] = (wrong[:150] + 1) % 3
    assert plain_rounds.accuracy(Brightest(), (images, labels)) == 1
    assert plain_rounds.accuracy(Brightest(), (images, wrong)) == 0.75


def test_a_class_that_a_client_lacks_has_no_mean_answer() -> None:
    images, labels = torch.rand(5, 1, 2, 2), torch.tensor([0, 2, 2, 0, 2])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    rows = plain_rounds.mean_logits(model, (images, labels), 3)
    assert rows[1].isnan().all()
    for c in (0, 2):
        torch.testing.assert_close(rows[c], model(images[labels == c]).mean(0).detach())


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
