"""What became of each trial, and what a sweep found: as it is read, told and kept."""

import io
import json
from collections.abc import Callable, Sequence
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
from fl.json_files import JsonObject
from fl.methods.method import Uniform
from fl.report.words import NONE
from tests.tune.made_up import INVENTORY, end, epoch, event, members, trial
from tune import outcome, tuning
from tune.options import SweepOptions, parse_sweep
from tune.outcome import (
    TrialRow,
    compare,
    print_summary,
    print_trials,
    ranked,
    read_rows,
    savings,
    spread,
    write_report,
    write_sweep,
)
from tune.trials import default_run
from tune.tuning import search


def found(rows: Sequence[TrialRow], best: TrialRow) -> JsonObject:
    """What a sweep with these trials and two final seeds found."""
    default, final = (0.5, 0.6), (0.7, 0.7)
    gain = [b - d for b, d in zip(final, default, strict=True)]
    return {
        "seed": 4,
        "trials": [row.to_json() for row in rows],
        "best": {"trial": best.name, "settings": dict(best.settings)},
        "test": {"default": spread(default), "best": spread(final), "gain": spread(gain)},
        "clients_trained_and_reused": savings(rows, members(), INVENTORY),
        "seconds": 20.0,
    }


def printed(tell: Callable[[Console], None]) -> list[str]:
    out = io.StringIO()
    tell(Console(file=out, width=200))
    return out.getvalue().splitlines()


def test_spread_is_the_samples() -> None:
    assert spread((0.5, 0.7))["std"] == pytest.approx(0.1 * 2**0.5)
    assert spread((0.5,))["std"] is None


def test_each_trial_is_kept_with_its_figures(folder: Path, tmp_path: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    write_sweep(found(rows, rows[1]), tmp_path)
    best, failed = (json.loads((tmp_path / "result.json").read_text())["trials"][k] for k in (1, 3))
    assert (best["settings"], best["epoch"], best["clients_reused"]) == ({"keep": 0.5}, 2, 2)
    assert (failed["status"], failed["reason"]) == ("failed", "UserError: too few")
    assert "accuracy" not in failed
    # TensorBoard has a point for each trial that was scored.
    assert {path.name for path in (tmp_path / "tensorboard").iterdir() if path.is_dir()} == {
        *("default", "00000", "00001")
    }


@pytest.mark.parametrize(
    ("best", "compared"),
    [
        ("00000", ["best-seed4", "best-seed5", "default-seed4", "default-seed5"]),
        ("default", ["default-seed4", "default-seed5"]),
    ],
)
def test_the_page_compares_the_final_runs(
    best: str, compared: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    (chosen,) = (row for row in rows if row.name == best)
    pages: list[tuple[list[Path], Path]] = []
    monkeypatch.setattr("fl.report.compare.write_comparison", lambda *given: pages.append(given))
    write_report(found(rows, chosen), folder)
    assert pages == [([folder / "final" / name for name in compared], folder / "report.html")]


def test_each_trial_has_a_line_and_a_reason_if_it_failed(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    lines = printed(lambda c: print_trials(rows, SweepOptions(), c))
    heading, *told = [line.split() for line in lines]
    assert heading == ["trial", "validation", "loss", "epochs", "settings", "status"]
    assert told[0] == ["00000", "70.0%", "0.3000", "2", "keep=0.5", "finished"]
    assert told[3] == ["00002", NONE, NONE, NONE, "keep=0.9", "failed"]
    assert lines[-1] == "trial 00002 failed: UserError: too few"


def test_trials_of_a_method_without_one_fit_are_told_too(tmp_path: Path) -> None:
    (trial(tmp_path, "default", {}) / "result.json").write_text('{"accuracy": 0.75}')
    rows = read_rows(tmp_path, {"keep": 0.8})
    lines = printed(lambda c: print_trials(rows, SweepOptions(), c))
    assert lines[1].split() == ["default", "75.0%", NONE, "0", "keep=0.8", "finished"]
    write_sweep(found(rows, rows[0]), tmp_path)


def test_the_last_lines_say_what_was_saved_and_what_is_gained(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    lines = printed(lambda c: print_summary(found(rows, rows[1]), folder, c))
    told = {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in lines}
    assert told["clients"] == "2 trainings, 6 reused: 36.0 s of training saved"
    assert told["best"] == "trial 00000: keep=0.5"
    assert (
        told["test"]
        == "best 70.0% ± 0.0, default 55.0% ± 7.1, gain +15.0 ± 7.1 points over 2 seeds"
    )
    assert told["again"].endswith(str(folder / "best.yaml"))


# What became of each trial, as its directory tells.


def test_rows_tell_what_became_of_each_trial(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    assert [row.name for row in rows] == ["default", "00000", "00001", "00002"]
    assert [row.status for row in rows] == ["finished", "finished", "stopped", "failed"]
    assert [row.settings["keep"] for row in rows] == [0.8, 0.5, 0.7, 0.9]
    assert rows[1].scores == {"accuracy": 0.7, "loss": pytest.approx(0.3), "epoch": 2}
    assert rows[3].scores == {}
    assert rows[3].reason == "UserError: too few"


def test_the_best_last_epochs_of_those_that_finished_come_first(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    names = [row.name for row in ranked(rows, SweepOptions())]
    assert names == ["00000", "default", "00001", "00002"]  # the stopped one was better so far
    assert [row.name for row in ranked(rows, SweepOptions(metric="loss"))][:2] == names[:2]


def test_another_stage_is_no_epoch_of_the_result(tmp_path: Path) -> None:
    trial(tmp_path, "00000", {}, epoch(1, 0.2, 1), epoch(9, 0.9, 2, stage="distil-init"))
    assert read_rows(tmp_path, {})[0].scores["accuracy"] == 0.2


def test_a_resumed_trial_counts_its_own_training_once(tmp_path: Path) -> None:
    again = (event("run_start", 0.0), end(0, 10.0, reused=True), epoch(1, 0.4, 7.0))
    path = trial(tmp_path, "00000", {}, end(0, 10.0, reused=False), epoch(1, 0.4, 5.0), *again)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epo')  # killed while it wrote
    (row,) = read_rows(tmp_path, {})
    assert (row.trained, row.reused, row.seconds) == ({(0, None, 1): 10.0}, {}, 12.0)


def test_over_rounds_each_training_of_a_client_counts(tmp_path: Path) -> None:
    ends = [
        end(0, 3.0, reused=True, model="vgg9"),
        end(0, 1.0, reused=False, model="cvae-small"),
        *(end(0, 2.0, reused=False, model="vgg9", round=number) for number in (2, 3)),
    ]
    trial(tmp_path, "00000", {}, *ends)
    saved = savings(read_rows(tmp_path, {}), members(), INVENTORY)
    assert (saved["trained"], saved["trained_seconds"]) == (3, 5.0)
    assert (saved["reused"], saved["saved_seconds"]) == (1, 3.0)


def test_savings_add_up_what_was_reused(folder: Path) -> None:
    saved = savings(read_rows(folder, {"keep": 0.8}), members(), INVENTORY)
    assert (saved["trained"], saved["reused"]) == (2, 6)
    assert (saved["trained_seconds"], saved["saved_seconds"]) == (12.0, 36.0)
    # Two of client 0 run at once, four of client 1.
    assert saved["least_seconds_saved"] == 3 * (10 / 2 + 2 / 4)


# What a sweep does and says from its default to its report: best against default, by seed.


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
