"""The state that a job writes to its run directory, so that no scheduler has to be asked."""

from dataclasses import asdict, dataclass
from pathlib import Path

from fl.json_files import read_json_if_whole, write_json


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a job is, as its own processes report it."""

    job: str
    phase: str
    """submitted, starting, running, requeued or ended."""
    status: int | None = None
    """Exit status of the launch, once it has ended."""
    restarts: int = 0


def write_state(run_dir: Path, state: State) -> None:
    """Replaces the state in the run directory."""
    (run_dir / "slurm").mkdir(exist_ok=True)
    write_json(run_dir / "slurm" / "state.json", asdict(state))


def read_state(run_dir: Path) -> State | None:
    """The state in the run directory; None if the run was never submitted, or if it is damaged."""
    found = read_json_if_whole(run_dir / "slurm" / "state.json")
    try:
        return State(**found) if found else None
    except TypeError:  # another program's
        return None
