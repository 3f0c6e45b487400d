"""The decorator of a method of one's own."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import onefold
from fl.errors import UserError
from fl.federation import RunSpec
from fl.methods.registry import METHODS
from fl.training.classifier import ClassifierConfig
from onefold.methods import OneClassifier

SPEC = RunSpec(image_shape=(1, 28, 28), num_classes=10, seed=0)
TOO_SMALL = RunSpec(image_shape=(1, 8, 8), num_classes=10, seed=0)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@dataclass(frozen=True, kw_only=True)
class Settings(OneClassifier):
    """One more setting."""

    share: float = 0.5


def test_a_decorated_function_is_a_method_whose_clients_train_one_classifier() -> None:
    @onefold.method("mine", config=Settings, over_rounds=False)
    def mine(clients, server, config):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    assert METHODS["mine"] is mine
    assert mine.one_shot
    config = Settings(classifier=ClassifierConfig(model="cnn"))
    assigned = mine.assign(config, 3, SPEC)
    assert [(a.role, a.training) for a in assigned] == [("classifier", config.classifier)] * 3
    with pytest.raises(UserError, match="lenet5 does not take images of shape"):
        mine.assign(Settings(classifier=ClassifierConfig(model="lenet5")), 3, TOO_SMALL)


def test_a_name_of_onefolds_is_refused() -> None:
    with pytest.raises(UserError, match="method fedavg comes with Onefold"):
        onefold.method("fedavg")(lambda clients, server, config, rounds: None)  # type: ignore
    with pytest.raises(UserError, match="expected a Method, got str"):
        onefold.register_method("mine")  # type: ignore[arg-type]
