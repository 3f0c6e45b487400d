"""Tasks that run for one client or for many at once."""

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from fl.federation import TaskInput, TaskOutput, Training
from fl.training import captured, slots
from fl.training.recipe import Recipe, one_by_one
from fl.training.task import (
    conflict,
    task_for_many,
    task_of,
    train_by_recipe,
    train_many,
    trains_in_cohorts,
)
from tests.fl.toy import CLASSIFIER, VGG, same_bits
from tests.fl.training.cohorts import Own, assert_close, inputs, recipe_for, recipe_with, together

COHORT = (5, 1, 9)


def plain(own: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"id": torch.tensor([own.client.id])})


def cohort(training: Training) -> list[TaskInput]:
    return [inputs(training, size, k) for k, size in enumerate(COHORT)]


def test_a_task_of_a_recipe_travels_by_name() -> None:
    assert pickle.loads(pickle.dumps(train_by_recipe)) is train_by_recipe
    task = task_of(recipe_with(Own(nn.Identity())))
    assert task(inputs(CLASSIFIER, 9, 0)).stats["train_loss"] > 0


def test_a_task_for_many_is_one_for_a_single_client_too() -> None:
    companies: list[int] = []

    @task_for_many
    def counted(clients: Sequence[TaskInput]) -> list[TaskOutput]:
        companies.append(len(clients))
        return [plain(client) for client in clients]

    many = train_many(counted, cohort(CLASSIFIER))
    assert [output.tensors["id"].item() for output in many] == [0, 1, 2]
    assert counted(cohort(CLASSIFIER)[2]).tensors["id"].item() == 2
    assert companies == [3, 1]
    assert counted.__name__ == "counted"
    assert trains_in_cohorts(counted)


def test_a_task_of_ones_own_is_run_for_each_client_by_itself() -> None:
    assert not trains_in_cohorts(plain)
    found = train_many(plain, cohort(CLASSIFIER))
    assert [output.tensors["id"].item() for output in found] == [0, 1, 2]


def test_clients_without_a_conflict_train_as_one() -> None:
    clients = cohort(CLASSIFIER)
    expected = together(clients)
    for found, one in zip(train_many(CLASSIFIER.task, clients), expected, strict=True):
        assert same_bits(found.tensors, one.tensors)
        assert found.stats == one.stats


def test_clients_with_a_conflict_train_one_by_one_each_as_if_alone() -> None:
    training = replace(VGG, epochs=1)
    clients = cohort(training)
    for found, own in zip(train_many(training.task, clients), clients, strict=True):
        assert same_bits(found.tensors, one_by_one(own, recipe_for(own)).tensors)


@pytest.mark.parametrize(("large", "parts"), [(2**23, [8, 1]), (100, [2, 2, 2, 2, 1])])
def test_on_a_gpu_models_too_large_for_slots_train_side_by_side(
    large: int, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest by twos. What is not replayed trains as on cores."""
    seen: list[int] = []

    def counted(clients: Sequence[TaskInput], recipes: Sequence[Recipe]) -> list[TaskOutput]:
        seen.append(len(clients))
        return as_it_is(clients, recipes)

    as_it_is = captured.train
    for name, value in {"LARGE": large, "WORTH_IT": 10**6, "train": counted}.items():
        monkeypatch.setattr(captured, name, value)
    monkeypatch.setattr(captured, "can_capture", lambda device: True)
    monkeypatch.setattr(slots, "LARGEST", 0)
    short = replace(VGG, epochs=1)
    clients = [inputs(short, 3 + k, k) for k in range(9)]
    for found, own in zip(train_many(short.task, clients), clients, strict=True):
        assert same_bits(found.tensors, as_it_is([own], [recipe_for(own)])[0].tensors)
    assert seen == parts
    kept = replace(CLASSIFIER, schedule="cosine")
    for found, own in zip(train_many(kept.task, cohort(kept)), cohort(kept), strict=True):
        assert same_bits(found.tensors, one_by_one(own, recipe_for(own)).tensors)
    assert seen == parts


@pytest.mark.parametrize("way", ["cohort", "slots", "side by side", "alone"])
def test_who_has_a_further_stage_goes_on_to_it(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slots in two waves."""
    monkeypatch.setattr(slots, "suits", lambda device: way == "slots")
    monkeypatch.setattr(captured, "can_capture", lambda device: way == "side by side")
    monkeypatch.setattr(slots, "SLOTS", 2)

    def two_stages(own: TaskInput) -> Recipe:
        first = recipe_for(own)
        then = None if own.client.id == 1 else lambda: replace(recipe_for(own), model=first.model)
        return replace(first, then=then)

    clients = cohort(VGG if way == "alone" else CLASSIFIER)
    for found, own in zip(train_many(task_of(two_stages), clients), clients, strict=True):
        recipe = two_stages(own)
        expected = one_by_one(own, recipe)
        if recipe.then is not None:
            expected = one_by_one(own, recipe.then())
        assert_close(found, expected)


def test_a_conflict_is_looked_for_once_for_all_clients_of_a_training_record() -> None:
    made: list[int] = []
    inner = recipe_with(Own(nn.Dropout(0.5)))

    def counted(own: TaskInput) -> Recipe:
        made.append(own.client.id)
        return inner(own)

    other = replace(CLASSIFIER, lr=0.07)
    reasons = {conflict(counted, own) for own in (*cohort(CLASSIFIER), *cohort(other))}
    assert reasons == {"norm is a Dropout, which draws from one stream for all"}
    assert made == [0, 0]  # once for each of the two records
