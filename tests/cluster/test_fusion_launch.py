"""The main command with the server over ranks: the same answer, and killed in the middle of it."""

import contextlib
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cluster.commands import command, environment, events, fingerprint, launch, result
from tests.waiting import wait_until

LONG = ["--name=run", "--fusion.epochs=40", "--fusion-checkpoint=2"]


@pytest.mark.slow
def test_two_ranks_give_the_accuracy_of_one(tmp_path: Path) -> None:
    figures = {}
    for ranks in (1, 2):
        done = launch(tmp_path, f"--name=r{ranks}", f"--fusion-ranks={ranks}", "--fusion.epochs=6")
        assert done.returncode == 0, done.stderr
        figures[ranks] = result(tmp_path / f"r{ranks}")
        assert figures[ranks]["fusion"] == {"ranks": ranks, "restarts": 0}
    one, two = figures[1], figures[2]
    assert two["synthetic"] == one["synthetic"]
    assert two["start_accuracy"] == one["start_accuracy"]
    assert two["accuracy_curve"] == pytest.approx(one["accuracy_curve"], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--fusion-ranks=2"], ["--runtime=inprocess"]])
def test_a_run_killed_inside_fusion_goes_on_there_to_the_same_model(
    how: list[str], tmp_path: Path
) -> None:
    undisturbed = launch(tmp_path / "undisturbed", *LONG, *how)
    assert undisturbed.returncode == 0, undisturbed.stderr

    run = tmp_path / "killed" / "run"
    process = subprocess.Popen(
        command(tmp_path / "killed", *LONG, *how), env=environment(), stdout=subprocess.DEVNULL
    )
    wait_until(lambda: epochs(run) >= 6, seconds=120)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=20)
    for member in family:  # Ray's agents would linger for a minute
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    before = epochs(run)
    assert before < 40

    resumed = launch(tmp_path / "killed", *LONG, *how, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert fingerprint(run) == fingerprint(tmp_path / "undisturbed" / "run")
    first = next(e["epoch"] for e in epoch_events(run)[before:])
    assert before - 2 <= first <= before + 1  # from the last state, not from the beginning
    assert not (run / "fusion").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fusion-ranks=0"], "fusion_ranks must be at least 1, got 0"),
        (["--fusion-ranks=2", "--runtime=inprocess"], "fusion_ranks above 1 need --runtime ray"),
        (["--fusion-timeout=0"], "fusion_timeout must be a positive number"),
        (["--fusion-checkpoint=0"], "fusion_checkpoint must be at least 1"),
    ],
)
def test_impossible_ranks_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = launch(tmp_path / "runs", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def epoch_events(run: Path) -> list[dict]:  # type: ignore[type-arg]
    return [e for e in events(run) if e["event"] == "epoch"]


def epochs(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count('"event": "epoch"') if metrics.exists() else 0
