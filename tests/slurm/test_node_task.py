"""What a job does on each of its nodes; the launch and the cluster are pretended."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.hardware.inventory import Inventory
from cluster.hardware.multi_node_ray import GatheringError
from slurm import node_task
from slurm.node_task import NodeTask
from slurm.status import State, read_state

MACHINE = Inventory(node="host", cpus=2, memory_bytes=10**9, gpus=(), source="slurm job 7")


class Allocation:
    """A job's node: notes what is started on it, and what the run's directory said then."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.commands: list[Sequence[str]] = []
        self.phases: list[str | None] = []
        self.meetings: list[Path] = []
        self.attended: list[int] = []
        self.cleared = 0
        self.status = 0
        self.gathers = True
        self.cancelled = False

    def task(self, *, ray: bool = True) -> NodeTask:
        return NodeTask(["--seed=3"], self.run_dir, nodes=2, ray=ray)

    @property
    def state(self) -> State | None:
        return read_state(self.run_dir)

    @contextmanager
    def gather(self, meeting: Path, **_: Any) -> Iterator[str]:
        self.note(meeting)
        if not self.gathers:
            raise GatheringError("1 of 2 nodes did not join")
        yield "head:6379"

    def attend(self, meeting: Path, *, node: int, **_: Any) -> None:
        self.note(meeting)
        self.attended.append(node)

    def start(self, command: Sequence[str], *_: Any) -> "Allocation":
        self.commands.append(command)
        self.phases.append(self.state.phase if self.state else None)
        return self

    def wait(self) -> int:
        if self.cancelled:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.status

    def clear(self) -> None:
        self.cleared += 1

    def note(self, meeting: Path) -> None:
        meeting.mkdir(parents=True, exist_ok=True)
        self.phases.append(self.state.phase if self.state else None)
        self.meetings.append(meeting)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocation]:
    """The first node of job 7."""
    made = Allocation(tmp_path)
    for name, value in {
        "adopt_orphans": lambda: None,
        "end_descendants": made.clear,
        "take_inventory": lambda: MACHINE,
        "gather": made.gather,
        "attend": made.attend,
        "start": made.start,
        "SIGNALLED_S": 0.0,
    }.items():
        monkeypatch.setattr(node_task, name, value)
    on(monkeypatch, 0)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR2)}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # should the task not see to it
    yield made
    for one, handler in before.items():
        signal.signal(one, handler)


def on(monkeypatch: pytest.MonkeyPatch, number: int, restarts: int = 0) -> None:
    """What Slurm says on that node."""
    for name, value in {"JOB_ID": 7, "PROCID": number, "NTASKS": 2, "LOCALID": 0}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")


def test_the_first_node_gathers_the_others_and_launches_on_their_cluster(node: Allocation) -> None:
    node.task()()
    (command,) = node.commands
    launch = [sys.executable, "-u", "-P", "-m", "cluster.launch", "--seed=3"]
    assert command == [*launch, "--ray-address=head:6379"]
    assert node.phases == ["starting", "running"]
    assert node.state == State(job="7", phase="ended", status=0)
    assert node.cleared


def test_without_ray_the_first_node_launches_alone_and_the_others_have_nothing_to_do(
    node: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = node.task(ray=False)
    task()
    told = node.state
    on(monkeypatch, 1)
    task()
    (command,) = node.commands
    assert command[-1] == "--seed=3"
    assert (node.meetings, node.attended, node.state) == ([], [], told)
    assert vars(task.checkpoint().function) == vars(task)


@pytest.mark.parametrize("status", [2, -9])
def test_a_launch_that_fails_fails_the_job_with_its_status(node: Allocation, status: int) -> None:
    node.status = status
    with pytest.raises(RuntimeError, match=f"status {status}"):
        node.task()()
    assert node.state == State(job="7", phase="ended", status=status)
    assert node.cleared


def test_where_nodes_stay_away_nothing_is_launched(node: Allocation) -> None:
    node.gathers = False
    with pytest.raises(GatheringError, match="1 of 2 nodes"):
        node.task()()
    assert not node.commands
    assert node.state == State(job="7", phase="ended", status=1)
    assert node.cleared


def test_the_other_nodes_join_and_leave_the_word_to_the_first(
    node: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.task()()
    told = node.state
    on(monkeypatch, 1)
    node.task()()
    assert node.attended == [1]
    assert len(set(node.meetings)) == 1
    assert len(node.commands) == 1
    assert node.state == told


def test_a_start_after_preemption_meets_where_no_other_start_has(
    node: Allocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for restarts in (0, 1):
        on(monkeypatch, 0, restarts)
        node.task()()
    assert len(set(node.meetings)) == 2
    assert node.state == State(job="7", phase="ended", status=0, restarts=1)


def test_a_cancelled_job_ends_what_it_started_and_says_nothing_of_an_end(node: Allocation) -> None:
    node.cancelled = True
    with pytest.raises(SystemExit) as stop:
        node.task()()
    assert stop.value.code == 128 + signal.SIGTERM
    assert node.cleared
    assert node.state == State(job="7", phase="running")


def test_a_preempted_job_is_requeued_as_the_same_launch(node: Allocation) -> None:
    task = node.task()
    task()
    again = task.checkpoint().function
    assert (node.meetings[0] / "over").exists()
    assert node.cleared == 2
    assert node.state == State(job="7", phase="requeued")
    assert vars(again) == vars(task)
