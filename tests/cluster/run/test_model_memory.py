"""A model that the machine cannot hold is refused by its size, unbuilt."""

import pytest

from cluster.run import prepare
from cluster.run.prepare import main_memory, refuse_large
from fl.errors import UserError
from fl.federation import RunSpec
from fl.models.registry import build_classifier
from fl.training.classifier import ClassifierConfig

SPEC = RunSpec(image_shape=(1, 28, 28), num_classes=10, seed=0)


def test_the_size_is_that_of_the_built_model(monkeypatch: pytest.MonkeyPatch) -> None:
    training = ClassifierConfig(model="cnn", width=0.25)
    model = build_classifier("cnn", SPEC.image_shape, 10, width=0.25)
    exactly = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    monkeypatch.setattr(prepare, "main_memory", lambda: exactly)
    refuse_large(training, SPEC)
    monkeypatch.setattr(prepare, "main_memory", lambda: exactly - 1)
    with pytest.raises(UserError, match=r"cnn with width 0.25 has .* of weights"):
        refuse_large(training, SPEC)


def test_this_machine_has_memory_for_usual_models() -> None:
    assert main_memory() > 2**28
    refuse_large(ClassifierConfig(model="vgg9", width=1.0), SPEC)
