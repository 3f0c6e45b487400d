"""Every client training on a GPU, in cohorts, to the same as on the CPU."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from fl.exchange import prefixed
from fl.federation import TaskInput, TaskOutput, Training
from fl.methods.fedgen import starting_generator
from fl.methods.registry import METHODS
from fl.models.common import parameters_sent
from fl.training import stacked
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig
from fl.training.task import RecipeTraining, train_many
from tests.fl.devices import Where, assert_same, on_both
from tests.fl.methods.small import small
from tests.fl.toy import PROBLEM, shard, task_input

pytestmark = pytest.mark.gpu

SHARDS = [shard(6, 0, 3), shard(1, 1, 1), shard(9, 2, 5)]


def trainings() -> Iterator[Training]:
    """Those that methods assign, each kind of record by each model once, and what settings make of
    the plain ones."""
    met: set[tuple[object, str]] = set()
    for name, method in METHODS.items():
        epochs = 2 if name.startswith("fedrep") else 1  # of two stages
        for assignment in method.assign(small(method.config(), epochs=epochs), 4, PROBLEM):
            own = assignment.training
            if (type(own), own.model) not in met:
                met.add((type(own), own.model))
                yield own
    for plain in (small(ClassifierConfig(model="cnn")), small(GeneratorConfig())):
        yield replace(plain, patience=1)
    yield small(ClassifierConfig(model="cnn", optimizer="adam"))
    yield small(GeneratorConfig(upload="cvae"))


EVERY = list(trainings())
BY_RECIPE = [training for training in EVERY if isinstance(training, RecipeTraining)]


def inputs(training: Training, where: Where) -> list[TaskInput]:
    """Three clients of very different shards, in their second round: with all that a task may ask
    for, as they were sent it or remember it."""
    goals = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    sent = {"mean_logits": goals, "held": torch.tensor([True, False, True])}
    remembered = {}
    if isinstance(training, ClassifierConfig):
        model = starting_classifier(training, PROBLEM)
        sent |= prefixed("generator", starting_generator(model, PROBLEM))
        zeros = {n: torch.zeros_like(p) for n, p in parameters_sent(model).items()}
        controls = {f"control.{n}": zero for n, zero in zeros.items()}
        sent |= controls
        drifts = {f"drift.{n}": zero for n, zero in zeros.items()}
        remembered = prefixed("classifier", model) | drifts | controls
    given = [task_input(training, data, id=k) for k, data in enumerate(SHARDS)]
    return [
        replace(g, device=where.device, payload=sent, remembered=remembered, round=2) for g in given
    ]


@pytest.mark.parametrize("training", EVERY, ids=lambda training: training.model)
def test_clients_upload_the_same_bits(training: Training) -> None:
    def work(where: Where) -> list[TaskOutput]:
        return train_many(training.task, inputs(training, where))

    assert_same(*on_both(work))


@pytest.mark.parametrize("training", BY_RECIPE, ids=lambda training: training.model)
def test_the_same_clients_may_train_together(training: RecipeTraining) -> None:
    """Found out where they train, once per process: the test above may come after others."""
    reasons = on_both(lambda where: stacked.conflict(training.recipe(inputs(training, where)[0])))
    assert_same(*reasons)
    held_out = "is measured on samples of its own" if getattr(training, "validation", 0) else None
    assert (
        reasons[0] is None or "is a Dropout" in reasons[0] or (held_out and held_out in reasons[0])
    )
