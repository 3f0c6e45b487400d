"""What a sweep does and says from its default to its report: best against default, by seed."""

import io
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cluster.run.command_line import parse
from cluster.run.options import Launch
from fl.errors import UserError
from fl.spaces import Uniform
from tests.tune.made_up import INVENTORY
from tune import outcome, tuning
from tune.options import parse_sweep
from tune.outcome import compare
from tune.trials import default_run
from tune.tuning import search

ARGUMENTS = ["--num-samples=3", "--runtime=inprocess", "--name=s", "--validation=0.2"]


def test_the_default_run_changes_no_setting_and_holds_images_out(tmp_path: Path) -> None:
    options, launch = parse_sweep([*ARGUMENTS, f"--output-dir={tmp_path}"])
    run = default_run(launch, options.validation)
    assert run.name == "s/trials/default"
    assert run.run.data.validation == 0.2
    assert run.run.options == launch.run.options


def test_each_step_is_said_as_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def run_trial(launch: Any, settings: Any, prepare_with: Any) -> None:
        done.append(launch.name)

    monkeypatch.setattr(tuning, "ray_cluster", lambda *_: nullcontext())
    monkeypatch.setattr(tuning, "run_trial", run_trial)
    monkeypatch.setattr(tuning, "run_trials", lambda *_: done.append("trials"))
    options, launch = parse_sweep([*ARGUMENTS, f"--output-dir={tmp_path}"])
    (tmp_path / "trials").mkdir()
    out, prepared = io.StringIO(), SimpleNamespace(inventory=None)
    console = Console(file=out, width=80)
    with pytest.raises(UserError, match="no trial finished"):
        search(options, launch, {"keep": Uniform(0.4, 1.0)}, prepared, tmp_path, console)  # type: ignore[arg-type]
    assert done == ["s/trials/default", "trials"]
    said = out.getvalue().splitlines()
    assert said[:3] == [
        "starting Ray …",
        "default configuration, on 0.2 of the training images",
        "3 trials of keep",
    ]
    assert max(map(len, said)) <= 80


class Runs:
    """Instead of the runs: their launches, and accuracies of their settings and seeds."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def __call__(self, launch: Launch, settings: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.launches.append(launch)
        return {"accuracy": launch.run.options.keep / 2 + launch.run.seed / 100}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(outcome, "run_trial", made)
    return made


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return parse([f"--output-dir={tmp_path}", "--name=sweep", "--seed=4", "--keep=0.8"])


def test_both_are_run_with_the_same_seeds_and_gains_are_seed_by_seed(
    runs: Runs, launch: Launch
) -> None:
    found = compare(launch, {"keep": 0.6}, INVENTORY, seeds=2)
    assert found["default"]["values"] == pytest.approx((0.44, 0.45))
    assert found["best"]["values"] == pytest.approx((0.34, 0.35))
    assert found["gain"]["values"] == pytest.approx((-0.1, -0.1))
    assert found["gain"]["std"] == pytest.approx(0, abs=1e-12)
    assert [run.run.seed for run in runs.launches] == [4, 5, 4, 5]
    names = [f"sweep/final/{label}-seed{s}" for label in ("default", "best") for s in (4, 5)]
    assert [run.name for run in runs.launches] == names
    # They differ in nothing else, and hold no images out.
    default, _, best, _ = (each.run for each in runs.launches)
    assert default == launch.run
    assert best == replace(default, options=replace(default.options, keep=0.6))


def test_a_default_that_is_the_best_is_run_once(runs: Runs, launch: Launch) -> None:
    found = compare(launch, {}, INVENTORY, seeds=3)
    assert len(runs.launches) == 3
    assert found["best"] == found["default"]
    assert found["gain"]["values"] == [0.0, 0.0, 0.0]
