"""The main command with the server over ranks: the same answer, and killed in the middle of it."""

import subprocess
from pathlib import Path

import pytest

from tests.cluster.commands import command, environment, events, fingerprint, launch, result
from tests.cluster.living import kill_with_family, wait_for
from tests.held import THERE, held

LONG = ["--name=run", "--fusion.epochs=16", "--fusion-checkpoint=0"]


TWO_RANKS, ONE_RANK = "--fusion-ranks=2", "--runtime=inprocess"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The long run's directory, on two ranks and on one."""
    found = {}
    for how in (TWO_RANKS, ONE_RANK):
        root = tmp_path_factory.mktemp("undisturbed")
        done = launch(root, *LONG, how)
        assert done.returncode == 0, done.stderr
        found[how] = root / "run"
    return found


@pytest.mark.ray
@pytest.mark.slow
def test_two_ranks_give_the_accuracy_of_one(undisturbed: dict[str, Path]) -> None:
    one, two = (result(undisturbed[how]) for how in (ONE_RANK, TWO_RANKS))
    assert one["fusion"] == {"ranks": 1, "restarts": 0}
    assert two["fusion"] == {"ranks": 2, "restarts": 0}
    assert two["synthetic"] == one["synthetic"]
    assert two["start_accuracy"] == one["start_accuracy"]
    # Rounding adds up over epochs.
    assert two["accuracy_curve"][:6] == pytest.approx(one["accuracy_curve"][:6], abs=0.03)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("how", [TWO_RANKS])
def test_a_run_killed_inside_fusion_goes_on_there_to_the_same_model(
    how: str, undisturbed: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "killed" / "run"
    process = subprocess.Popen(
        command(tmp_path / "killed", *LONG, how),
        env=environment() | held(tmp_path / "held", '"event": "epoch"', 4),
        stdout=subprocess.DEVNULL,
    )
    wait_for(process, (tmp_path / "held" / THERE).exists)
    kill_with_family(process)
    before = len(epoch_events(run))
    assert before == 4

    resumed = launch(tmp_path / "killed", *LONG, how, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert fingerprint(run) == fingerprint(undisturbed[how])
    first = next(e["epoch"] for e in epoch_events(run)[before:])
    # From the last state, not from the beginning: it may be an epoch ahead of what was told.
    assert before - 2 <= first <= before + 2
    assert not (run / "fusion").exists()


def epoch_events(run: Path) -> list[dict]:  # type: ignore[type-arg]
    return [e for e in events(run) if e["event"] == "epoch"]
