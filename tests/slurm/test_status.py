"""The list of our jobs, from run directories alone if need be."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fl.events import Epoch
from slurm.status import (
    INTERVAL_S,
    Said,
    Scheduler,
    State,
    ask_squeue,
    describe,
    main,
    overview,
    read_progress,
    submitted,
    write_state,
)
from tests.slurm.fake import calls, fake_command


def make_run(root: Path, name: str, state: State, *events: dict[str, object]) -> Path:
    run = root / name
    (run / "slurm").mkdir(parents=True)
    write_state(run, state)
    (run / "partition.json").write_text(json.dumps({"roles": ["classifier"] * 3}))
    lines = [json.dumps(event) + "\n" for event in events]
    (run / "metrics.jsonl").write_text("".join(lines) + '{"event": "hal')
    return run


def end(client: int) -> dict[str, object]:
    return {"event": "client_end", "client": client}


LOCAL = {"event": "phase", "phase": "local", "status": "start"}
FUSION = {"event": "phase", "phase": "fusion", "status": "start"}


def test_progress_is_that_of_the_last_start(tmp_path: Path) -> None:
    start, state = {"event": "run_start"}, State(job="1", phase="running")
    epoch = Epoch(stage="fusion", epoch=1, epochs=2, loss=0.5, accuracy=0.25).to_json()
    run = make_run(tmp_path, "a", state, start, LOCAL, end(0), end(1), start, LOCAL)
    assert read_progress(run) == ("local", "0 of 3", "")
    run = make_run(tmp_path, "b", state, start, LOCAL, end(0), end(0), FUSION, epoch)
    assert read_progress(run) == ("fusion", "1 of 3", "0.2500")


@pytest.mark.parametrize(
    ("state", "answer", "expected"),
    [
        (State(job="1", phase="ended", status=0), None, "finished"),
        (State(job="1", phase="ended", status=2), None, "failed with status 2"),
        (State(job="1", phase="submitted"), "1|PENDING|Priority\n", "pending (Priority)"),
        (State(job="1", phase="running"), "1|RUNNING|None\n", "running"),
        (State(job="1", phase="running"), "", "gone, was running"),
        (State(job="1", phase="running"), None, "running, Slurm does not answer"),
    ],
)
def test_a_job_is_described_by_its_last_word_or_slurms(
    state: State, answer: str | None, expected: str
) -> None:
    assert describe(state, Scheduler(ask=lambda: answer)) == expected


def table(root: Path, answer: str | None) -> list[str]:
    """The lines of the list, on 80 columns."""
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(overview(submitted(root), Scheduler(ask=lambda: answer)))
    return captured.get().splitlines()


def test_the_table_has_a_row_per_submitted_run(tmp_path: Path) -> None:
    make_run(tmp_path, "one", State(job="11", phase="running"), LOCAL, end(2))
    make_run(tmp_path, "two", State(job="12", phase="ended", status=0))
    (tmp_path / "local-run").mkdir()
    _, one, two = table(tmp_path, None)
    assert "1 of 3" in one
    assert "finished" in two


def test_long_names_and_states_fit_eighty_columns_and_no_word_is_cut(tmp_path: Path) -> None:
    name = "fedcvae-ens-cifar100-alpha0.05-k10000-seed12-2"
    epoch = Epoch(stage="distil-init", epoch=1, epochs=2, loss=0.5, accuracy=0.25).to_json()
    phase = {"event": "phase", "phase": "distil-init", "status": "start"}
    make_run(tmp_path, name, State(job="12345678_12", phase="running"), phase, epoch)
    lines = table(tmp_path, "12345678_12|PENDING|ReqNodeNotAvail, UnavailableNodes\n")
    assert max(map(len, lines)) <= 80
    words = {"12345678_12", "distil-init", "0.2500", "pending", "accuracy"}
    assert words <= set(" ".join(lines).split())


def test_where_nothing_was_submitted_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# Slurm is asked once in half a minute, whatever is asked of us.


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
