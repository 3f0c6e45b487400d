"""One client of each kind runs; the others send the same, and are counted."""

import numpy as np
import pytest

from cluster.rehearsal.costs import CLIENTS, TEST, Costs
from cluster.rehearsal.executor import OneOfEachKind
from fl.events import Events
from fl.executor import InProcess
from fl.federation import Job
from fl.packed import Packed
from tests.cluster.rehearsal.small import small_cut

ARGUMENTS = ("--method=fedmho", "--classifier.width=0.05", "--generator.width=0.1")


def jobs(*, tested: bool = False) -> tuple[list[Job], Costs, OneOfEachKind]:
    _, cut = small_cut(*ARGUMENTS)
    costs = Costs({})
    made = [
        Job(
            task=client.training.task,
            client=client,
            run_spec=cut.whole.run_spec,
            indices=own,
            broadcast=None,
            payload=None,
            test=np.arange(3) if tested else None,
        )
        for client, own in zip(cut.members, cut.train, strict=True)
    ]
    return made, costs, OneOfEachKind(cut, costs, at_once=1)


def test_one_of_each_kind_runs_and_all_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    made, costs, executor = jobs()
    ran: list[int] = []
    plain = InProcess.run

    def noted(self: InProcess, some: list[Job], events: Events) -> object:
        ran.extend(job.client.id for job in some)
        assert all(job.client.training.epochs == 1 for job in some)  # type: ignore[attr-defined]
        return plain(self, some, events)

    monkeypatch.setattr(InProcess, "run", noted)
    answered = {job.client.id: outcome for job, outcome in executor.run(made, Events())}
    assert set(ran) == {0, 2}  # a classifier and a generator
    assert sorted(answered) == [0, 1, 2, 3]
    assert all(isinstance(outcome, Packed) for outcome in answered.values())
    assert answered[1] is answered[0]
    assert costs.whole(1)[CLIENTS].seconds > 0
    assert costs.whole(1)[TEST].seconds == 0


def test_who_is_scored_for_another_has_no_right_answer() -> None:
    made, costs, executor = jobs(tested=True)
    answered = {
        job.client.id: bytes(outcome)  # type: ignore[arg-type]
        for job, outcome in executor.run(made, Events())
    }
    assert answered[1] != answered[0]
    assert costs.whole(1)[CLIENTS].seconds == 0
