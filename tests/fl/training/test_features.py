"""Features are what enters the head, of one model and of a cohort's."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import RunSpec
from fl.methods.fedgen import LocalFedGen
from fl.methods.fedproto import LocalFedProto
from fl.methods.moon import LocalMoon
from fl.models.registry import build_classifier, register_model
from fl.training.classifier import ClassifierConfig
from fl.training.features import features_and_logits, head_of
from fl.training.stacked import Turns, cohort_model
from tests.registries import registries_restored


def test_features_are_what_the_head_of_layer_makes_the_logits_of() -> None:
    model = build_classifier("convnet", (1, 28, 28), 10, width=0.05).eval()
    features, logits = features_and_logits(model, torch.rand(4, 1, 28, 28))
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    torch.testing.assert_close(last(features), logits)
    assert features.shape == (4, last.in_features)


def test_a_model_is_left_as_it_was_even_where_it_fails() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    features_and_logits(model, torch.rand(2, 4))
    with pytest.raises(RuntimeError, match="shapes"):
        features_and_logits(model, torch.rand(2, 5))
    pickle.dumps(model)  # which a hook that was left behind would prevent


def test_a_cohorts_last_layer_is_each_clients_own() -> None:
    models = [build_classifier("cnn", (1, 28, 28), 3, width=0.2) for _ in range(2)]
    turns = Turns()
    together = cohort_model(models, turns)
    turns.clients, turns.rows = [0, 1], [2, 3]
    images = torch.rand(5, 1, 28, 28)
    features, _ = features_and_logits(together, images)
    found = head_of(together)(features)
    for model, rows in zip(models, (slice(0, 2), slice(2, 5)), strict=True):
        expected = head_of(model)(features_and_logits(model, images[rows])[0])
        torch.testing.assert_close(found[rows], expected)


class HeadFirst(nn.Module):
    """The head is registered first, and another linear layer runs after it for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body, self.other = nn.Linear(6, 3), nn.Linear(64, 6), nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images.flatten(1)).relu())
        self.other(logits.detach())
        return logits.log_softmax(1)


class Functional(HeadFirst):
    def forward(self, images: Tensor) -> Tensor:
        return F.linear(self.body(images.flatten(1)).relu(), self.head.weight)


@pytest.fixture
def own() -> Iterator[Callable[[type[nn.Module]], nn.Module]]:
    def build(make: type[nn.Module]) -> nn.Module:
        register_model("mine", make)
        return build_classifier("mine", (1, 8, 8), 3)

    with registries_restored():
        yield build


def test_the_head_is_the_layer_that_runs_last_and_decides(
    own: Callable[[type[nn.Module]], nn.Module],
) -> None:
    model = own(HeadFirst)
    assert head_of(model) is model.head
    features, logits = features_and_logits(model, torch.rand(4, 1, 8, 8))
    assert features.shape == (4, 6)
    torch.testing.assert_close(head_of(model)(features).log_softmax(1), logits)


@pytest.mark.parametrize("training", [LocalMoon(), LocalFedGen(), LocalFedProto()])
def test_methods_of_features_refuse_a_model_without_a_head(
    own: Callable[[type[nn.Module]], nn.Module], training: ClassifierConfig
) -> None:
    own(Functional)
    with pytest.raises(UserError, match=r"needs features, but mine has no nn.Linear that gives"):
        replace(training, model="mine").check(RunSpec.of_images((1, 8, 8), num_classes=3, seed=0))
