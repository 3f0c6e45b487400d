"""--wait: what it shows, when it ends, and with which status."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fl.events import RunStart
from slurm.status import Scheduler, State, write_state
from slurm.submit import INTERRUPTED, SETTLE_S, Tail, follow
from tests.slurm.test_status import Clock


class World:
    """A run directory, a Slurm and a clock that the test moves; sleeping moves it too."""

    def __init__(self, run: Path) -> None:
        self.run = run
        (run / "slurm").mkdir(parents=True)
        self.clock = Clock()
        self.slurm: str | None = "7|PENDING|Resources\n"
        self.output = io.StringIO()
        self.then: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        self.then.append((self.clock.now + seconds, act))

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        due = [item for item in self.then if item[0] <= self.clock.now]
        self.then = [item for item in self.then if item not in due]
        for _, act in due:
            act()
        assert self.clock.now < 10_000, "follows for ever"

    def says(self, state: str | None) -> Callable[[], None]:
        return lambda: setattr(self, "slurm", state)

    def writes(self, phase: str, status: int | None = None, job: str = "7") -> Callable[[], None]:
        return lambda: write_state(self.run, State(job=job, phase=phase, status=status))

    def event(self, **event: object) -> None:
        with (self.run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"seconds": 1.0, **event}) + "\n")

    def follow(self) -> int:
        scheduler = Scheduler(ask=lambda: self.slurm, clock=self.clock)
        console = Console(file=self.output, width=200)
        return follow(self.run, "7", (), console, scheduler, clock=self.clock, sleep=self.sleep)

    @property
    def said(self) -> str:
        return self.output.getvalue()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_progress_is_shown_and_the_runs_status_returned(world: World) -> None:
    (world.run / "result.json").write_text('{"accuracy": 0.75}')
    world.writes("ended", 0, job="6")()  # an earlier job of the same run
    world.at(40, world.says("7|RUNNING|None\n"))
    world.at(41, lambda: world.event(event="phase", phase="local", status="start"))
    world.at(90, world.writes("ended", 0))
    assert world.follow() == 0
    assert "job 7: pending Resources" in world.said
    assert "job 7: running" in world.said
    assert "local …" in world.said
    assert "accuracy 0.7500" in world.said


@pytest.mark.parametrize(
    ("phase", "slurm", "expected"),
    [
        ("submitted", "FAILED|NonZeroExitCode", "not shared with the nodes"),
        ("running", "CANCELLED|None", "ended (cancelled) before the run did; --resume"),
    ],
)
def test_a_job_that_ends_without_its_run_is_a_failure(
    world: World, phase: str, slurm: str, expected: str
) -> None:
    world.writes(phase)()
    world.at(35, world.says(f"7|{slurm}\n"))
    assert world.follow() == 1
    assert expected in world.said


@pytest.mark.parametrize(
    ("phase", "slurm", "ends_at"),
    [
        ("running", "7|RUNNING|None\n", 5),
        ("running", "7|COMPLETED|None\n", SETTLE_S / 2),  # the directory lags behind Slurm
        ("requeued", "7|PENDING|BeginTime\n", 200),
        ("submitted", None, 500),  # Slurm does not answer
    ],
)
def test_a_job_is_followed_until_its_run_tells_its_status(
    world: World, phase: str, slurm: str | None, ends_at: float
) -> None:
    world.writes(phase)()
    world.says(slurm)()
    world.at(ends_at, world.writes("ended", 2))
    assert world.follow() == 2
    assert "status 2" in world.said


def test_ctrl_c_leaves_the_job_alone(world: World) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    world.at(3, interrupt)
    assert world.follow() == INTERRUPTED
    assert "scancel 7" in world.said


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"event": "run_start", "run": "old"}\n')
    tail = Tail(file)
    assert not list(tail.read())
    with file.open("a") as more:
        more.write('{"event": "run_start", "run": "new"}\n{"event": "run_')
    assert list(tail.read()) == [RunStart(run="new")]
    with file.open("a") as more:
        more.write('start", "run": "half"}\n')
    assert list(tail.read()) == [RunStart(run="half")]
    assert not list(Tail(tmp_path / "none").read())
