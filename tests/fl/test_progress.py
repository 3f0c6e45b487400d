"""Clients report their progress: seldom, only to a listener, and without any influence."""

from collections.abc import Callable, Sequence

import pytest
import torch

import fl.events
from fl.condensation.kip import KipTraining
from fl.condensation.task import LocalCondensation
from fl.events import ClientProgress, report, reported_to
from fl.federation import TaskInput, TaskOutput, Training
from fl.training.task import train_many
from tests.fl.toy import CLASSIFIER, GENERATOR, VGG, same_bits, shard, task_input
from tests.pretended_gpu import pretended_gpus

Heard = list[ClientProgress]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is passed on as soon as it is reported."""
    monkeypatch.setattr(fl.events, "PERIOD_S", 0.0)


def clients(training: Training, count: int = 2) -> list[TaskInput]:
    return [task_input(training, shard(4, 4, 4, seed=k), id=7 + k) for k in range(count)]


def heard_of(cohort: list[TaskInput]) -> tuple[Heard, list[TaskOutput]]:
    heard: Heard = []
    with reported_to(heard.extend):
        outputs = train_many(cohort[0].client.training.task, cohort)
    return heard, outputs


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("training", [CLASSIFIER, GENERATOR, VGG], ids=["cnn", "cvae", "alone"])
def test_each_client_of_a_cohort_reports_its_epochs_and_their_loss(training: Training) -> None:
    heard, outputs = heard_of(clients(training))
    for k, output in zip((7, 8), outputs, strict=True):
        own = [told for told in heard if told.client == k]
        assert [(t.unit, t.done, t.of) for t in own] == [("epoch", 1, 2), ("epoch", 2, 2)]
        assert own[-1].loss == output.stats["train_loss"]
        assert own[0].loss != own[1].loss


@pytest.mark.usefixtures("at_once")
def test_a_gpus_streams_are_waited_for_before_a_loss_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that reports has others' losses read too, from its own stream."""
    order: list[str] = []

    def read() -> float:
        order.append("reads")
        return 1.0

    with pretended_gpus(), reported_to(lambda reports: None), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", lambda: order.append("waits"))
        report(7, 1, 2, read)
        torch.cuda.init()
        report(7, 2, 2, read)
    assert order == ["reads", "waits", "reads"]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "training",
    [
        LocalCondensation(width=0.2, images_per_class=1, steps=3, batch_size=4),
        KipTraining(images=3, steps=3, targets=3, stop="never"),
    ],
    ids=["condensation", "kip"],
)
def test_who_learns_images_reports_its_steps(training: Training) -> None:
    heard, _ = heard_of(clients(training, 1))
    assert [(t.client, t.unit, t.done, t.of) for t in heard] == [
        (7, "step", n, 3) for n in (1, 2, 3)
    ]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("training", [CLASSIFIER, GENERATOR, VGG], ids=["cnn", "cvae", "alone"])
def test_who_is_heard_uploads_the_same_bits(training: Training) -> None:
    silent = train_many(training.task, clients(training))
    _, outputs = heard_of(clients(training))
    for ours, theirs in zip(silent, outputs, strict=True):
        assert same_bits(ours.tensors, theirs.tensors)
        assert ours.stats == theirs.stats


def test_a_listener_hears_twice_a_second_at_most_and_then_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(fl.events.time, "monotonic", lambda: now)
    calls: list[list[ClientProgress]] = []
    read: list[int] = []

    def loss(at: int) -> Callable[[], float]:
        return lambda: read.append(at) or float(at)

    def listener(told: Sequence[ClientProgress]) -> None:
        calls.append(list(told))

    with reported_to(listener):
        for step in range(1, 21):  # two seconds
            now += 0.1
            report(1, step, 20, loss(step))
            report(2, step, 20, loss(step))
    assert 3 <= len(calls) <= 4
    assert all({t.client for t in told} == {1, 2} for told in calls[1:])
    assert len(read) <= 2 * len(calls)  # a loss is read from its device only when it is passed on


def test_no_report_outside_of_the_context_nor_of_a_loss_that_is_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fl.events, "PERIOD_S", 0.0)
    heard: Heard = []
    with reported_to(heard.extend):
        report(1, 1, None, lambda: float("nan"))
    report(1, 2, None, lambda: pytest.fail("read"))
    assert not heard
