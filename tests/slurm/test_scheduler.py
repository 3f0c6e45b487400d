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
    """Answers from a list, the last for ever, and notes when."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.clock = Clock()
        self.times: list[float] = []
        self.scheduler = Scheduler(ask=self, clock=self.clock)

    def __call__(self) -> str | None:
        self.times.append(self.clock.now)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_states_are_read_for_all_jobs_at_once() -> None:
    squeue = Squeue(ANSWER)
    found = {job: squeue.scheduler.state(job) for job in ("12", "13_0", "13_1", "99")}
    assert found == {
        "12": Said(state="RUNNING"),
        "13_0": Said(state="PENDING", reason="Resources"),
        "13_1": Said(state="FAILED", reason="NonZeroExitCode"),
        "99": Said(state="GONE"),
    }
    assert [said.ended for said in found.values() if said] == [False, False, True, True]
    assert len(squeue.times) == 1


def test_no_two_questions_within_half_a_minute_and_without_an_answer_the_last_one_stays() -> None:
    squeue, found = Squeue(None, ANSWER, None), []
    for _ in range(1000):
        found.append(squeue.scheduler.state("12"))
        squeue.clock.now += 0.7
    gaps = [b - a for a, b in zip(squeue.times, squeue.times[1:], strict=False)]
    assert len(gaps) > 15
    assert min(gaps) >= INTERVAL_S == 30.0
    unknown = found.count(None)
    assert found == [None] * unknown + [Said(state="RUNNING")] * (1000 - unknown)
    assert 0 < unknown <= 31 / 0.7


def test_squeue_is_asked_without_accounting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = fake_command(tmp_path, "squeue", f"printf '{ANSWER}'")
    fake_command(tmp_path, "sacct", "exit 1")
    monkeypatch.setenv("PATH", environ["PATH"])
    assert ask_squeue() == ANSWER
    assert "--me" in calls(tmp_path, "squeue")[0]
    assert not calls(tmp_path, "sacct")


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$", None])
def test_a_squeue_that_fails_or_is_missing_says_nothing(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_command(tmp_path, "squeue", script)["PATH"] if script else str(tmp_path)
    monkeypatch.setenv("PATH", path)
    assert ask_squeue() is None
