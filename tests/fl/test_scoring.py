"""Clients scored on test samples of their own: who is asked, what is counted, what is believed."""

from collections.abc import Generator, Sequence
from statistics import mean, pstdev
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl import scoring
from fl.client_map import OnFailure
from fl.clients import Clients
from fl.errors import ClientFailed, UserError
from fl.events import Events
from fl.exchange import Upload, pack
from fl.executor import InProcess
from fl.federation import Job, TaskInput, TaskOutput
from fl.scoring import OwnTests, answered, checked_hits
from fl.server import Evaluation
from tests.fl.methods.tiny import NoStore
from tests.fl.toy import PROBLEM, Told, client, into, named, split

TRAIN = split(12, 12, 12)
SHARDS = [np.arange(k, 36, 12) for k in range(4)]
TESTS = [np.arange(4, 12), np.arange(16, 22), np.arange(0), np.arange(28, 36)]
"""Eight samples of class 0, six of class 1, none, and eight of class 2."""


class Says(nn.Module):
    """Answers one class, whatever it is shown."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor) -> Tensor:
        return torch.eye(3)[torch.full((len(images),), self.answer)]


def own_number(inputs: TaskInput) -> nn.Module:
    """The class that the client was told, or else that it remembers, or else 0."""
    assert inputs.test is None, "no method sees a test sample"
    told = inputs.payload.get("answer", inputs.remembered.get("answer", torch.tensor(0)))
    return Says(int(told))


def fails(inputs: TaskInput) -> nn.Module:
    if inputs.client.id == 1:
        raise RuntimeError("no model")
    return Says(0)


def remember_two(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"answer": torch.tensor(2)})


def federation(
    tests: list[np.ndarray] = TESTS, heard: list[Told] | None = None, on_failure: OnFailure = "stop"
) -> Clients:
    return Clients(
        [client(k) for k in range(4)],
        SHARDS,
        PROBLEM,
        InProcess(TRAIN),
        NoStore(),
        Events(into(heard if heard is not None else [])),
        on_failure=on_failure,
        tests=OwnTests.of(tests, TRAIN.labels, 3),
    )


def test_each_client_is_asked_about_its_own_samples_and_the_mean_is_over_clients() -> None:
    scored = federation().score(own_number)
    assert scored.per_client == (1.0, 0.0, None, 0.0)
    assert scored.accuracy == pytest.approx(1 / 3)
    assert scored.per_class == (1.0, 0.0, 0.0)


def test_a_model_may_be_made_of_what_is_sent_and_of_what_is_remembered() -> None:
    clients = federation()
    clients.map(remember_two, only=[3], remember=True)
    sent = {1: {"answer": torch.tensor(1)}}
    assert clients.score(own_number, payloads=sent).per_client == (1.0, 1.0, None, 1.0)


def test_no_byte_is_counted_and_nothing_is_told_but_the_phase() -> None:
    heard: list[Told] = []
    clients = federation(heard=heard)
    clients.score(own_number, payloads={0: {"answer": torch.tensor(1)}})
    assert not any((*clients.bytes_up.values(), *clients.bytes_down.values()))
    assert {event["event"] for event in heard} == {"phase"}
    assert {event["phase"] for event in heard} == {"scoring"}
    assert clients.busy_seconds == 0


def test_a_failed_client_ends_the_run_or_is_left_out_by_name() -> None:
    with pytest.raises(ClientFailed, match="client 1"):
        federation().score(fails)
    heard: list[Told] = []
    clients = federation(heard=heard, on_failure="drop")
    assert clients.score(fails).per_client == (1.0, None, None, 0.0)
    assert list(clients.dropped) == [1]
    assert [event["client"] for event in named(heard, "client_dropped")] == [1]
    assert clients.score(own_number).per_client == (1.0, None, None, 0.0)


def test_a_run_whose_clients_have_no_test_samples_is_refused() -> None:
    none = [np.arange(0)] * 4
    with pytest.raises(UserError, match=r"partition\.test_fraction"):
        federation(none).score(own_number)


@pytest.mark.parametrize(
    ("hits", "message"),
    [
        (torch.tensor([9, 0, 0]), "impossible"),
        (torch.tensor([-1, 0, 0]), "impossible"),
        (torch.tensor([0, 1, 0]), "impossible"),
        (torch.tensor([1.0, 0, 0]), "no right answers"),
        (torch.tensor([1]), "no right answers"),
    ],
)
def test_impossible_answers_are_not_believed(hits: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^sent {message}"):
        checked_hits({"hits": hits}, OwnTests.of(TESTS, TRAIN.labels, 3).counts[0])


def test_who_answers_the_impossible_has_failed_by_name() -> None:
    class Liar:
        def run(
            self, jobs: Sequence[Job], events: Events
        ) -> Generator[tuple[Job, Upload | ClientFailed], None, None]:
            for job in jobs:
                claim = {"hits": torch.full((3,), 10**6)} if job.client.id == 0 else {}
                yield job, Upload(pack(claim, {}))

    tests = OwnTests.of(TESTS, TRAIN.labels, 3)
    jobs = [answer_job(k) for k in (0, 1)]
    told = {job.client.id: str(said) for job, said in answered(jobs, Liar(), Events(), tests)}
    assert told[0].startswith("client 0 (cnn) failed: sent impossible right answers")
    assert told[1].startswith("client 1 (cnn) failed: sent no right answers")


def answer_job(k: int) -> Job:
    return Job(task=remember_two, client=client(k), run_spec=PROBLEM, indices=np.arange(2))


def scores(*accuracies: float | None) -> Evaluation:
    there = [a for a in accuracies if a is not None]
    return Evaluation(accuracy=mean(there), per_class=(), per_client=accuracies)


def test_figures_name_who_was_not_scored_and_average_the_last_ten_rounds() -> None:
    rounds = [scores(0.0, None, 1.0)] * 5 + [scores(0.2, None, 0.4)] * 9 + [scores(1.0, None, 0.5)]
    found: dict[str, Any] = scoring.figures(rounds)
    assert found["ua"] == pytest.approx((9 * 0.3 + 0.75) / 10)
    assert found["client_accuracy"] == [1.0, None, 0.5]
    assert found["untested"] == [1]
    assert found["client_scores"] == {"mean": 0.75, "spread": pstdev([1, 0.5]), "worst_tenth": 0.5}
    assert scoring.figures([Evaluation(accuracy=0.5, per_class=())]) == {}


def test_the_worst_tenth_of_thirty_clients_are_three() -> None:
    (found,) = [scoring.figures([scores(*(k / 100 for k in range(30)))])]
    assert found["client_scores"]["worst_tenth"] == pytest.approx(0.01)
