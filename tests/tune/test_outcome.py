"""What a sweep found, as it is told and as it is kept."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from fl.spaces import Uniform
from tests.tune.made_up import INVENTORY, members, trial
from tune.options import SweepOptions, parse_sweep
from tune.outcome import (
    Spread,
    Sweep,
    print_summary,
    print_trials,
    ranked,
    spread,
    write_sweep,
)
from tune.report import write_report
from tune.rows import TrialRow, read_rows, savings


def comparison() -> dict[str, Spread]:
    """Over two seeds."""
    default, best = (0.5, 0.6), (0.7, 0.7)
    gain = tuple(b - d for b, d in zip(best, default, strict=True))
    return {"default": spread(default), "best": spread(best), "gain": spread(gain)}


def sweep_of(rows: Sequence[TrialRow], folder: Path, best: TrialRow, *arguments: str) -> Sweep:
    options, launch = parse_sweep(arguments)
    return Sweep(
        folder=folder,
        options=options,
        run=launch.run,
        space={"keep": Uniform(0.4, 1.0)},
        rows=tuple(rows),
        best=best,
        comparison=comparison(),
        savings=savings(rows, members(), INVENTORY),
        seconds=20.0,
        partition="abc",
    )


def printed(tell: Callable[[Console], None], width: int = 200) -> list[str]:
    out = io.StringIO()
    tell(Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_the_page_and_the_figures_of_a_sweep(folder: Path, tmp_path: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    sweep = sweep_of(rows, tmp_path, rows[1])
    write_sweep(sweep)
    figures = json.loads((tmp_path / "result.json").read_text())
    assert figures["scored_on"] == "validation"
    assert figures["best"] == {"trial": "00000", "settings": {"keep": 0.5}}
    assert figures["test"]["best"]["values"] == [0.7, 0.7]
    page = write_report(sweep).read_text()
    for word in ("UserError: too few", "stopped", "+15.0 ± 7.1", "6 reused", "at least 36"):
        assert word in page, word
    assert (tmp_path / "plots" / "effects.png").stat().st_size > 1000


def test_the_best_come_first_and_the_unfinished_last(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    names = [row.name for row in ranked(rows, SweepOptions())]
    assert names == ["00000", "default", "00001", "00002"]
    assert [row.name for row in ranked(rows, SweepOptions(metric="loss"))][:2] == names[:2]


def test_each_trial_has_a_line_and_a_reason_if_it_failed(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    lines = printed(lambda c: print_trials(rows, SweepOptions(), c))
    heading, *told = [line.split() for line in lines]
    assert heading == ["trial", "validation", "loss", "epochs", "settings", "status"]
    assert told[0] == ["00000", "70.0%", "0.3000", "2", "keep=0.5", "finished"]
    assert told[3] == ["00002", "-", "-", "-", "keep=0.9", "failed"]
    assert lines[-1] == "trial 00002 failed: UserError: too few"


def test_trials_of_a_method_without_one_fit_are_told_too(tmp_path: Path) -> None:
    (trial(tmp_path, "default", {}) / "result.json").write_text('{"accuracy": 0.75}')
    rows = read_rows(tmp_path, {"keep": 0.8})
    lines = printed(lambda c: print_trials(rows, SweepOptions(), c))
    assert lines[1].split() == ["default", "75.0%", "-", "0", "keep=0.8", "finished"]
    write_sweep(sweep_of(rows, tmp_path, rows[0]))


def test_the_last_lines_say_what_was_saved_and_what_is_gained(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    lines = printed(lambda c: print_summary(sweep_of(rows, folder, rows[1]), c))
    told = {line.partition(" ")[0]: line.partition(" ")[2].strip() for line in lines}
    assert told["clients"] == "2 trainings, 6 reused: 36.0 s of training saved"
    assert told["best"] == "trial 00000: keep=0.5"
    assert (
        told["test"]
        == "best 70.0% ± 0.0, default 55.0% ± 7.1, gain +15.0 ± 7.1 points over 2 seeds"
    )
    assert told["again"].endswith(str(folder / "best.yaml"))
