"""The plain loops over rounds come to what the methods come to."""

import plain_rounds
import pytest
import torch
from torch import nn

from fl.fusion.feature_generation import GeneratorFitConfig
from fl.methods.fedavg import FedAvgConfig
from fl.methods.fedgen import FedGenConfig
from fl.training.classifier import ClassifierConfig
from fl.training.generated import LocalFedGen
from tests.benchmarks.plain_loops import SOME, assert_close, ours, plainly, weights


def test_averaging_is_fedavg() -> None:
    local = ClassifierConfig(model="cnn", width=0.3, epochs=3, lr=0.05, batch_size=99)
    config = FedAvgConfig(num_large=3, classifier=local)
    found = plainly(plain_rounds.averaging, config, SOME, 2)
    (member,) = ours("fedavg", config, SOME, 2).members  # type: ignore[union-attr]
    assert_close(found[-1], member)
    with pytest.raises(AssertionError):
        assert_close(found[0], member)


def test_a_class_that_a_client_lacks_has_no_mean_answer() -> None:
    images, labels = torch.rand(5, 1, 2, 2), torch.tensor([0, 2, 2, 0, 2])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    rows = plain_rounds.mean_logits(model, (images, labels), 3)
    assert rows[1].isnan().all()
    for c in (0, 2):
        torch.testing.assert_close(rows[c], model(images[labels == c]).mean(0).detach())


LOCAL = {"model": "cnn", "width": 0.3, "epochs": 3, "lr": 0.05, "batch_size": 99}


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
