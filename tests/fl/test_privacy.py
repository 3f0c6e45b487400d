"""Attacks: ROC curves, membership inference, copies, and a whole federation attacked."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl.data.datasets import Dataset
from fl.data.shard import Shard
from fl.federation import Training
from fl.privacy import (
    DRAWN,
    Subject,
    as_bytes,
    attack,
    balanced,
    confidences,
    copies,
    curve_of,
    lines,
    measure,
)
from fl.training.classifier import starting_classifier
from tests.fl.toy import CLASSIFIER, GENERATOR, PROBLEM, VGG, split, task_input

TRAIN, TEST = split(20, 20, 20), split(10, 10, 10, seed=1)
LISTS = [np.arange(0, 30), np.arange(30, 45), np.arange(45, 60)]


def subject(*trainings: Training, with_model: bool = True) -> Subject:
    uploads = {}
    for k, training in enumerate(trainings):
        own = Shard.from_split(TRAIN, LISTS[k], 3)
        uploads[k] = training.task(task_input(training, own, id=k)).tensors
    return Subject(
        dataset=Dataset("toy", TRAIN, TEST, 3),
        lists=LISTS,
        trainings=trainings,
        uploads=uploads,
        run_spec=PROBLEM,
        model=starting_classifier(CLASSIFIER, PROBLEM) if with_model else None,
    )


ONCE = replace(CLASSIFIER, epochs=1)


def test_classifiers_and_the_global_model_are_attacked_and_decoders_drawn_from() -> None:
    found = measure(subject(ONCE, replace(VGG, epochs=1), replace(GENERATOR, epochs=1)))
    assert [row["client"] for row in found["uploads"]] == [0, 1]
    assert found["global"]["attacks"].keys() == {"loss", "ratio"}
    (drawn,) = found["images"]
    assert (drawn["client"], drawn["kind"], drawn["images"]) == (2, "drawn", DRAWN)
    assert max(map(len, lines(found))) <= 80


def test_members_are_the_clients_own_and_as_many_of_each_class() -> None:
    found = measure(subject(ONCE, ONCE, ONCE))
    counts = [row["attacks"]["loss"]["members"] for row in found["uploads"]]
    assert counts == [20, 10 + 5, 10]  # of ten test samples a class: 10+10, 10+5, 10
    assert all(row["attacks"].keys() == {"loss", "ratio"} for row in found["uploads"])


def test_of_the_global_model_only_those_are_members_who_trained() -> None:
    found = measure(replace(subject(ONCE, ONCE, ONCE), uploads=subject(ONCE).uploads))
    (own,) = found["uploads"]
    members = own["attacks"]["loss"]["members"]
    assert found["global"]["attacks"]["loss"]["members"] == members


def test_without_other_classifiers_there_is_no_ratio() -> None:
    generator = replace(GENERATOR, epochs=1)
    found = measure(subject(ONCE, generator, generator, with_model=False))
    assert found["uploads"][0]["attacks"].keys() == {"loss"}
    assert found["global"] is None


def test_a_run_without_a_model_or_images_says_so() -> None:
    empty = replace(subject(with_model=False), uploads={})
    assert [*lines(measure(empty))] == [
        "no upload here is a whole classifier, a decoder or condensed images"
    ]


def test_copies_are_at_distance_zero_and_strangers_are_even() -> None:
    draws = torch.Generator().manual_seed(0)
    train, test, new = (
        torch.randint(0, 256, (60, 1, 6, 6), generator=draws, dtype=torch.uint8) for _ in range(3)
    )
    copied = copies(train[:20], train, test)
    assert [copied[name] for name in ("images", "to_train", "ratio", "nearer")] == [20, 0, 0, 1]
    fresh = copies(new, train, test)
    assert 0.95 < fresh["ratio"] < 1.05
    assert 0.3 < fresh["nearer"] < 0.7


def test_floats_become_bytes() -> None:
    assert as_bytes(torch.tensor([-1.0, 0.5, 2.0])).tolist() == [0, 128, 255]


def test_scores_that_part_members_from_others_find_all() -> None:
    found = curve_of(np.arange(10.0, 20), np.arange(10.0))
    assert (found["auc"], found["error"]) == (1.0, 0.0)
    assert found["at"]["0.01"]["value"] == 1
    assert found["at"]["0.01"]["low"] == pytest.approx(0.025 ** (1 / 10))  # Clopper and Pearson's
    assert curve_of(np.arange(10.0), np.arange(10.0, 20))["auc"] == 0


def test_equal_scores_tell_nothing() -> None:
    found = curve_of(np.zeros(50), np.zeros(60))
    assert found["auc"] == 0.5
    assert found["at"]["0.001"]["value"] == 0


def test_noise_is_a_coin_within_its_error() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 2000))
    found = curve_of(*draws)
    assert abs(found["auc"] - 0.5) < 3 * found["error"]
    assert found["error"] == pytest.approx(np.sqrt(1 / 12 / 1000), rel=0.05)
    assert found["at"]["0.01"]["low"] <= 0.01 <= found["at"]["0.01"]["high"]


def test_no_more_others_are_accused_than_the_rate_allows() -> None:
    found = curve_of(np.array([98.5, 99.5]), np.arange(100.0))["at"]
    assert (found["0.01"]["value"], found["0.001"]["value"]) == (1.0, 0.5)


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


@cache
def by_heart(data_seed: int, seed: int) -> nn.Module:
    data, model = noise(80, data_seed), network(seed)
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
    references = [both(by_heart(seed, seed)) for seed in (5, 6, 7)]
    found = attack(both(by_heart(1, 0)), references)
    assert found["loss"]["auc"] > 0.95
    assert found["ratio"]["auc"] > 0.95


def test_an_untrained_model_tells_nothing() -> None:
    found = attack(both(network(0)), [both(network(seed)) for seed in (5, 6)])
    for curve in found.values():
        assert abs(curve["auc"] - 0.5) < 3.5 * curve["error"]


def test_hard_samples_are_compared_with_how_hard_they_are_for_others() -> None:
    """A member that is hard for all, and an easy stranger: the loss alone takes one for the
    other."""
    found = attack((np.array([1.0]), np.array([2.0])), [(np.array([-3.0]), np.array([2.5]))])
    assert (found["loss"]["auc"], found["ratio"]["auc"]) == (0.0, 1.0)


def test_what_a_reference_has_seen_it_does_not_judge() -> None:
    seen = [(np.array([np.nan]), np.array([0.0])), (np.array([-1.0]), np.array([0.0]))]
    assert attack((np.array([0.0]), np.array([0.5])), seen)["ratio"]["auc"] == 1.0


def test_members_and_others_have_the_same_classes() -> None:
    labels = np.array([0, 0, 0, 1, 2]), np.array([1, 1, 0, 0, 3])
    members, others = balanced(*labels, seed=0)
    assert labels[0][members].tolist() == labels[1][others].tolist() == [0, 0, 1]


def test_confidence_orders_samples_as_the_loss_does() -> None:
    model = by_heart(1, 0)
    losses = F.cross_entropy(model(OTHERS.images), OTHERS.labels, reduction="none").detach()
    assert np.argsort(confidences(model, OTHERS)).tolist() == losses.argsort().flip(0).tolist()
