"""The main command with many rounds, on several GPUs."""

import sys
from pathlib import Path

import pytest

from tests.cluster.commands import result
from tests.cluster.commands import run as run_line
from tests.cluster.fake_driver import CARDS, pretended

FEDAF = [
    *("--method=fedaf", "--num-clients=4", "--rounds=4", "--name=run"),
    *("--data.max-train=200", "--data.max-test=100", "--fusion.epochs=2", "--fusion.test-every=2"),
    *("--condensation.width=0.05", "--condensation.steps=10", "--condensation.images-per-class=2"),
]


def command(root: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "cluster.launch", *FEDAF, f"--output-dir={root}", *more]


def run(root: Path, *more: str, **environ: str) -> Path:
    """Runs the command to its end, and returns the run's directory."""
    done = run_line(command(root, *more), **environ)
    assert done.returncode == 0, done.stderr
    return root / "run"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rounds in one process."""
    return run(tmp_path_factory.mktemp("here"), "--runtime=inprocess")


def outcome(run: Path) -> tuple[object, ...]:
    """What two equal runs have in common, round by round."""
    figures = result(run)
    rounds = [{k: v for k, v in r.items() if k != "seconds"} for r in figures["per_round"]]
    model = (run / "model" / "global.safetensors").read_bytes()
    return figures["accuracy_curve"], figures["bytes_up"], figures["bytes_down"], rounds, model


def rounds_played(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count('"event": "round"') if metrics.exists() else 0


@pytest.mark.slow
def test_rounds_on_several_gpus_are_those_of_one_process(tmp_path: Path, undisturbed: Path) -> None:
    """Clients with shares of GPUs, and a rank on each, side by side to the end."""
    figures = result(run(tmp_path, "--rounds=2", **pretended(tmp_path, *CARDS)))
    expected = result(undisturbed)
    assert figures["fusion"] == {"ranks": 3, "restarts": 0}
    assert all(0 < p["assigned"]["GPU"] < 1 for p in figures["placements"])
    # As much travels, and what three ranks fit is the same but for rounding.
    for ours, theirs in zip(figures["per_round"], expected["per_round"], strict=False):
        assert (ours["bytes_up"], ours["bytes_down"]) == (theirs["bytes_up"], theirs["bytes_down"])
        assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.05)
