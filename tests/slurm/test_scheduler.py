"""Slurm is asked once in half a minute, whatever is asked of us."""

from pathlib import Path

import pytest

from slurm.status import INTERVAL_S, Said, Scheduler, ask_squeue
from tests.slurm.fake import calls, fake_command

ANSWER = "12|RUNNING|None\n13_0|PENDING|Resources\n13_1|FAILED|NonZeroExitCode\n"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Squeue:
    """Answers from a list, the last for ever, and counts."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.times: list[float] = []

    def asked_at(self, clock: Clock) -> "Squeue":
        self.clock = clock
        return self

    def __call__(self) -> str | None:
        self.times.append(self.clock.now)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_states_are_read_for_all_jobs_at_once() -> None:
    squeue = Squeue(ANSWER).asked_at(Clock())
    scheduler = Scheduler(ask=squeue, clock=squeue.clock)
    assert scheduler.state("12") == Said(state="RUNNING")
    assert scheduler.state("13_0") == Said(state="PENDING", reason="Resources")
    said = scheduler.state("13_1")
    assert said is not None
    assert said.ended
    assert scheduler.state("99") == Said(state="GONE")
    assert len(squeue.times) == 1


def test_no_two_questions_within_half_a_minute() -> None:
    clock = Clock()
    squeue = Squeue(None, ANSWER, None).asked_at(clock)
    scheduler = Scheduler(ask=squeue, clock=clock)
    for _ in range(1000):
        scheduler.state("12")
        clock.now += 0.7
    gaps = [b - a for a, b in zip(squeue.times, squeue.times[1:], strict=False)]
    assert len(gaps) > 15
    assert min(gaps) >= INTERVAL_S == 30.0


def test_a_question_without_answer_keeps_the_last() -> None:
    clock = Clock()
    scheduler = Scheduler(ask=Squeue(None, ANSWER, None).asked_at(clock), clock=clock)
    assert scheduler.state("12") is None
    clock.now += 31
    assert scheduler.state("12") == Said(state="RUNNING")
    clock.now += 31
    assert scheduler.state("12") == Said(state="RUNNING")


def test_squeue_is_asked_without_accounting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = fake_command(tmp_path, "squeue", f"printf '{ANSWER}'")
    fake_command(tmp_path, "sacct", "exit 1")
    monkeypatch.setenv("PATH", environ["PATH"])
    assert ask_squeue() == ANSWER
    assert "--me" in calls(tmp_path, "squeue")[0]
    assert not calls(tmp_path, "sacct")


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$"])
def test_a_squeue_that_fails_says_nothing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake_command(tmp_path, "squeue", script)["PATH"])
    assert ask_squeue() is None


def test_a_missing_squeue_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_squeue() is None
