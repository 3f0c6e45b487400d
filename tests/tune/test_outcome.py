"""What a sweep found, as it is told and as it is kept."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fl.json_files import JsonObject
from fl.report.words import NONE
from tests.tune.made_up import INVENTORY, members, trial
from tune.options import SweepOptions
from tune.outcome import print_summary, print_trials, spread, write_report, write_sweep
from tune.rows import TrialRow, read_rows, savings


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
