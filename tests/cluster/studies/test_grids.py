"""A grid as a user asks for it: every combination once, one table, one picture."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster import grid
from cluster.run.run_dir import locate
from cluster.studies.comparison import Figure
from cluster.studies.grids import parse_grid
from tests.cluster.commands import events
from tests.undrawn import WRITE_REPORT, draw_nothing

COMMON = {
    "num_clients": 2,
    "num_large": 2,
    "data": {"max_train": 100, "max_test": 60},
    "classifier": {"model": "cnn", "width": 0.1, "epochs": 1},
    "fedprox": {"classifier": {"proximal": 0.5}},
}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(json.dumps(COMMON))
    return tmp_path


def made(*arguments: str) -> int:
    return grid.main(["--grid", *arguments, "--preset=mine.yaml", "--runtime=inprocess"])


def written(folder: Path) -> dict[str, int]:
    return {f.parent.name: f.stat().st_mtime_ns for f in folder.glob("runs/*/result.json")}


def test_every_combination_runs_once_and_more_values_run_what_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made("method=fedavg,fedprox", "alpha=5", "seed=0,1", "--name=mine") == 0
    before = written(folder)
    assert len(before) == 2 * 1 * 2
    assert "mine-alpha5-fedprox-seed1" in before
    lines = capsys.readouterr().out.splitlines()
    assert "| Row | Method | Accuracy, % | Rank |" in lines
    assert sum(line.startswith("| alpha") for line in lines) == 2
    assert (folder / "runs" / "mine.png").read_bytes().startswith(b"\x89PNG")
    cells = json.loads((folder / "runs" / "mine.json").read_text())["cells"]
    assert [len(cell["accuracies"]) for cell in cells] == [2] * 2

    assert made("method=fedavg", "alpha=5,50", "seed=0", "--name", "mine") == 0
    after = written(folder)
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_settings_of_a_method_in_the_file_are_its_alone_and_clients_are_shared(
    folder: Path,
) -> None:
    assert made("method=fedavg,fedprox,moon", "--alpha=5") == 0
    saved = {r.name: (r / "config.yaml").read_text() for r in (folder / "runs").glob("grid-*")}
    assert {name: "proximal: 0.5" in text for name, text in saved.items()} == {
        "grid-digits-fedavg-seed0": False,
        "grid-digits-fedprox-seed0": True,
        "grid-digits-moon-seed0": False,
    }
    reused = [e for e in events(folder / "runs" / "grid-digits-moon-seed0") if e.get("reused")]
    assert len(reused) == 2  # MOON's first round is FedAvg's


def test_a_grid_may_be_a_file(folder: Path) -> None:
    (folder / "axes.yaml").write_text("method: [fedavg]\nclassifier.epochs: [1, 2]\nseed: 3\n")
    runs, _, _ = parse_grid(["axes.yaml", "--preset=mine.yaml"])
    assert {launch.run.options.classifier.epochs for launch in runs.values()} == {1, 2}
    names = [f"grid-classifier.epochs{n}-fedavg-seed3" for n in (1, 2)]
    assert [launch.name for launch in runs.values()] == names


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["alhpa=1,2"], "unknown option '--alhpa' (did you mean --alpha?)"),
        (["alpha=0.1,-1"], "alpha"),
        (["method=fedavg", "fedprox"], "expected NAME=VALUE,VALUE, got 'fedprox'"),
        (["alpha=1,,2"], "alpha has an empty value"),
        (["alpha=1", "alpha=2"], "alpha is given twice"),
        (["seed=a"], "seed must be whole numbers"),
        ([], "a grid needs settings with values"),
        (["none.yaml"], "none.yaml"),
        (["alpha=1,2", "--name=../up"], "../up"),
        (["method=fedavg,dense", "participation=0.5"], "unknown option '--participation'"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(
    arguments: list[str], line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made(*arguments) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("onefold: ")
    assert line in told
    assert not (folder / "runs").exists()


def test_without_seeds_among_the_values_the_options_have_it() -> None:
    for words, seeds in ((["--seed=5"], [5, 5]), (["seed=1,2"], [1, 2, 1, 2])):
        runs, _, _ = parse_grid(["method=fedavg,fedprox", *words])
        assert [seed for _, seed in runs] == [launch.run.seed for launch in runs.values()] == seeds


def test_the_picture_has_a_panel_for_each_combination_of_the_other_settings() -> None:
    runs, _, exhibit = parse_grid(["alpha=0.5,5", "rounds=1,2", "--method=fedavg"])
    figures = [Figure(cell, ({"accuracy": 0.5},)) for cell, _ in runs]
    drawn = exhibit.draw(figures)
    assert [axes.get_title() for axes in drawn.axes] == ["rounds 1", "rounds 2"]
    assert {axes.get_xlabel() for axes in drawn.axes} == {"alpha"}


def test_rounds_are_marked_by_whole_numbers() -> None:
    runs, _, exhibit = parse_grid(["method=fedavg,fedprox", "--rounds=2"])
    result = {"accuracy": 0.5, "start_accuracy": 0.1, "accuracy_curve": [0.4, 0.5]}
    figures = [Figure(cell, (result,)) for cell, _ in runs]
    (axes,) = exhibit.draw(figures).axes
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_dry_run_names_the_runs_and_slurm_gets_those_that_are_left(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made("method=fedavg", "seed=0") == 0
    capsys.readouterr()
    assert made("method=fedavg", "seed=0,1", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[-2:]] == ["finished", "to be run"]
    sent: list[Any] = []
    monkeypatch.setattr("slurm.array.submit_all", lambda launches, console: sent.extend(launches))
    assert made("method=fedavg", "seed=0,1", "--slurm") == 0
    assert [locate(launch).name for launch in sent] == ["grid-digits-fedavg-seed1"]
