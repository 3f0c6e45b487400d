"""Features are what enters the last linear layer, of one model and of a cohort's."""

import pickle

import pytest
import torch
from torch import nn

from fl.models import build_classifier
from fl.training.features import features_and_logits, head_of
from fl.training.per_client import Turns, cohort_model


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
