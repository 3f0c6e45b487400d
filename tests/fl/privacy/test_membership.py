"""Membership inference: near 1 against a model that learned by heart, near 0.5 untrained."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fl.data.shard import Shard
from fl.privacy.measure import attack, balanced, confidences

CLASSES = 20


def noise(size: int, seed: int) -> Shard:
    """Images and labels that have nothing to do with each other, so all learning is by heart. Of
    many classes: of few, a model is right about many strangers by chance, and as sure of itself."""
    draws = torch.Generator().manual_seed(seed)
    images = torch.rand(size, 1, 8, 8, generator=draws)
    return Shard(images, torch.randint(0, CLASSES, (size,), generator=draws), CLASSES)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def by_heart(data: Shard, seed: int) -> nn.Module:
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(data.images), data.labels).backward()
        optimizer.step()
    return model


MEMBERS, OTHERS = noise(80, 1), noise(80, 2)


def both(model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    return confidences(model, MEMBERS), confidences(model, OTHERS)


def test_a_model_that_learned_by_heart_gives_its_members_away() -> None:
    references = [both(by_heart(noise(80, seed), seed)) for seed in (5, 6, 7)]
    found = attack(both(by_heart(MEMBERS, 0)), references)
    assert found["loss"].auc > 0.95
    assert found["ratio"].auc > 0.95


def test_an_untrained_model_tells_nothing() -> None:
    found = attack(both(network(0)), [both(network(seed)) for seed in (5, 6)])
    for curve in found.values():
        assert abs(curve.auc - 0.5) < 3.5 * curve.error


def test_hard_samples_are_compared_with_how_hard_they_are_for_others() -> None:
    """A member that is hard for all, and an easy stranger: the loss alone takes one for the
    other."""
    found = attack((np.array([1.0]), np.array([2.0])), [(np.array([-3.0]), np.array([2.5]))])
    assert (found["loss"].auc, found["ratio"].auc) == (0.0, 1.0)


def test_what_a_reference_has_seen_it_does_not_judge() -> None:
    seen = [(np.array([np.nan]), np.array([0.0])), (np.array([-1.0]), np.array([0.0]))]
    assert attack((np.array([0.0]), np.array([0.5])), seen)["ratio"].auc == 1.0


def test_members_and_others_have_the_same_classes() -> None:
    labels = np.array([0, 0, 0, 1, 2]), np.array([1, 1, 0, 0, 3])
    members, others = balanced(*labels, seed=0)
    assert labels[0][members].tolist() == labels[1][others].tolist() == [0, 0, 1]


def test_confidence_orders_samples_as_the_loss_does() -> None:
    model = by_heart(MEMBERS, 0)
    losses = F.cross_entropy(model(OTHERS.images), OTHERS.labels, reduction="none").detach()
    assert np.argsort(confidences(model, OTHERS)).tolist() == losses.argsort().flip(0).tolist()
