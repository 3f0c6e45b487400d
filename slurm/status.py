"""``python -m slurm.status``: the states of all runs that were sent to Slurm."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fl.command import run_command
from fl.errors import UserError, escaped
from fl.events import ClientEnd, Epoch, Event, Phase, RunEnd, RunStart, parse_events
from fl.json_files import read_json_if_whole
from fl.own_process import run_as_command
from fl.whole_files import no_pipe
from slurm.scheduler import GONE, Scheduler, State, read_state


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, by its own events."""

    phase: str = ""
    finished: int = 0
    """Clients that have finished, those from the store included."""
    clients: int | None = None
    accuracy: float | None = None
    """The global model's accuracy after the last epoch so far."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table and returns 0, or 2 where there is nothing to read."""
    return run_command(status, "python -m slurm.status", argv)


def status(output_dir: Path = Path("runs")) -> None:
    """Prints the states of all runs that were sent to Slurm.

    Args:
        output_dir: Where runs are kept.
    """
    found = submitted(output_dir)
    if not found:
        raise UserError(f"no run in {output_dir} was sent to Slurm")
    Console(markup=False).print(overview(found, Scheduler()))


def submitted(output_dir: Path) -> dict[Path, State]:
    """The run directories that a job was submitted for, by name."""
    runs = sorted(path.parent.parent for path in output_dir.glob("*/slurm/state.json"))
    states = {run: read_state(run) for run in runs}
    return {run: state for run, state in states.items() if state is not None}


def overview(runs: dict[Path, State], scheduler: Scheduler) -> Table:
    """A row per run."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    for name in ("job", "state", "phase", "clients", "accuracy"):
        table.add_column(name, no_wrap=name != "state")
    for run, state in runs.items():
        at = read_progress(run)
        table.add_row(
            escaped(run.name),
            state.job,
            escaped(describe(state, scheduler)),
            escaped(at.phase),
            f"{at.finished} of {at.clients or '?'}",
            "" if at.accuracy is None else f"{at.accuracy:.4f}",
        )
    return table


def describe(state: State, scheduler: Scheduler) -> str:
    """The job's state: as the job reported its end, else as Slurm reports it, if it does."""
    if state.status is not None:
        return "finished" if state.status == 0 else f"failed with status {state.status}"
    reported = scheduler.state(state.job)
    if reported is None:
        return f"{state.phase}, Slurm does not answer"
    if reported.state == GONE:
        return f"gone, was {state.phase}"
    reason = f" ({reported.reason})" if reported.reason else ""
    return f"{reported.state.lower()}{reason}"


def read_progress(run: Path) -> Progress:
    """Reads the run's events; a line that the job has not finished writing is skipped."""
    phase, accuracy = "", None
    finished: set[int] = set()
    for event in _events(run / "metrics.jsonl"):
        match event:
            case RunStart():
                phase, accuracy, finished = "", None, set()
            case Phase(status="start"):
                phase = event.phase
            case ClientEnd():
                finished.add(event.client)
            case Epoch():
                accuracy = event.accuracy
            case RunEnd():
                phase, accuracy = "done", event.accuracy
    return Progress(
        phase=phase, finished=len(finished), clients=_num_clients(run), accuracy=accuracy
    )


def _events(path: Path) -> Iterator[Event]:
    try:
        with no_pipe(path).open(errors="replace") as file:
            yield from parse_events(file)
    except FileNotFoundError:
        return


def _num_clients(run: Path) -> int | None:
    roles = (read_json_if_whole(run / "partition.json") or {}).get("roles")
    return len(roles) if isinstance(roles, list) else None


if __name__ == "__main__":
    run_as_command(main)
