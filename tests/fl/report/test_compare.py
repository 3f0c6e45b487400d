"""The page that compares runs."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fl.command import run_command
from fl.errors import UserError
from fl.report.__main__ import regenerate
from fl.report.compare import accuracy_curves, groups_of, write_comparison
from fl.report.read import RunRecord, read_run
from fl.report.words import NONE
from tests.fl.report.conftest import MakeRun, legend


def change(run_dir: Path, result: dict[str, Any], **settings: Any) -> Path:
    """Changes a run's result, and its configuration."""
    for file, load, dump, changes in (
        ("config.yaml", yaml.safe_load, yaml.safe_dump, settings),
        ("result.json", json.loads, json.dumps, result),
    ):
        path = run_dir / file
        path.write_text(dump(load(path.read_text()) | changes))
    return run_dir


def tables(run_dirs: list[Path], tmp_path: Path) -> tuple[list[list[dict[str, str]]], str]:
    """The rows of the page's tables by the columns' names, and its source."""
    page = write_comparison(run_dirs, tmp_path / "compare.html").read_text()
    found = []
    for shown in page.split("<table>")[1:]:
        lines = shown.split("<tr>")[1:]
        head, *rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in lines]
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found, page


def table(run_dirs: list[Path], tmp_path: Path) -> tuple[list[dict[str, str]], str]:
    """The rows of the page's first table, and its source."""
    (first, *_), page = tables(run_dirs, tmp_path)
    return first, page


def test_settings_that_differ_are_shown_and_no_others(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        change(make_run("a"), {}, method="fedmho", keep=0.5, fusion={"lr": 0.1, "epochs": 3}),
        change(make_run("b"), {}, method="fedmho", keep=0.7, fusion={"lr": 0.1, "epochs": None}),
        change(make_run("c"), {}, method="fedavg", own=["x", "y"], fusion={"lr": 0.1, "epochs": 3}),
    ]
    (_, settings), page = tables(runs, tmp_path)
    assert settings == [
        {"Run": "a", "method": "fedmho", "keep": "0.5", "fusion.epochs": "3"},
        {"Run": "b", "method": "fedmho", "keep": "0.7", "fusion.epochs": "none"},
        {"Run": "c", "method": "fedavg", "keep": NONE, "fusion.epochs": "3"},
    ]
    assert "Settings that differ" in page


def test_seeds_of_one_row_are_no_difference(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [seeded(make_run, 0), seeded(make_run, 1)]
    assert len(tables(runs, tmp_path)[0]) == 1
    other = change(make_run("other"), {}, seed=1, alpha=0.1)
    _, settings = tables([*runs, other], tmp_path)[0]
    assert [(row["Run"], row["seed"]) for row in settings] == [("dense", "0, 1"), ("other", "1")]


def test_runs_are_side_by_side_the_best_first(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("worse"), change(make_run("better"), {"method": "dense", "accuracy": 0.93})]
    rows, page = table(runs, tmp_path)
    assert rows[0] == {
        "Run": "better",
        "Method": "dense",
        "Data": "digits",
        "Alpha": "0.5",
        "Seeds": "0",
        "Accuracy": "93.0%",
        "Start": "29.0%",
        "Gain": "+64.0",
        "Sent up": "76.3 MB",
        "Time": "9.0 s†",
        "Protocol": "one-shot",
    }
    assert rows[1]["Run"] == "worse"
    assert page.count("data:image/svg+xml;base64,") == 1
    assert "different" not in page


@pytest.mark.parametrize(
    ("result", "settings", "said"),
    [
        ({"dataset": "mnist"}, {}, "different data sets"),
        ({}, {"own": {"data.folder": "another digest"}}, "different data sets"),
        ({"partition": {"kind": "iid", "hash": "other"}}, {}, "different partitions"),
        ({"ua": 0.9}, {}, "scored on different samples"),
        ({}, {"data": {"max_test": 100}}, "scored on different samples"),
        ({"versions": {"onefold": "0.2", "torch": "2.9"}}, {}, "different versions: onefold 0.1"),
    ],
)
def test_runs_that_cannot_be_compared_are_marked(
    make_run: MakeRun,
    tmp_path: Path,
    result: dict[str, Any],
    settings: dict[str, Any],
    said: str,
) -> None:
    one = change(make_run("one"), {"versions": {"onefold": "0.1", "torch": "2.9"}})
    assert said in table([one, change(make_run("two"), result, **settings)], tmp_path)[1]


def seeded(make_run: MakeRun, seed: int, **result: Any) -> Path:
    return change(make_run(f"dense-seed{seed}"), {"seed": seed, **result}, seed=seed)


def test_runs_of_one_configuration_are_a_row_and_a_curve(make_run: MakeRun, tmp_path: Path) -> None:
    parts = [{"partition": {"kind": "dirichlet", "hash": f"of seed {seed}"}} for seed in (0, 1)]
    runs = [
        seeded(make_run, 0, accuracy=0.80, bytes_up=1000, **parts[0]),
        seeded(make_run, 1, accuracy=0.90, bytes_up=3000, **parts[1]),
    ]
    lines = (runs[1] / "metrics.jsonl").read_text().splitlines()
    (runs[1] / "metrics.jsonl").write_text("\n".join(lines[:-1]))
    (row,), page = table(runs, tmp_path)
    assert [row[name] for name in ("Run", "Seeds", "Accuracy", "Sent up")] == [
        "dense",
        "0, 1",
        "85.0% ± 7.1",
        "2.0 kB",
    ]
    assert "different partitions" not in page
    (axes,) = accuracy_curves(groups_of([read_run(run) for run in runs])).axes
    assert len(axes.collections) == 1  # the band
    (mean,) = axes.lines
    assert np.asarray(mean.get_xdata()).tolist() == [0, 1, 2, 3]  # the epochs that both have
    assert legend(axes) == ["dense (2 seeds)"]


def test_a_group_has_each_seed_once_and_one_configuration(make_run: MakeRun) -> None:
    def run(name: str, **settings: Any) -> RunRecord:
        return read_run(change(make_run(name), {}, **settings))

    runs = [run("a"), run("b"), run("c", seed=1, versions={}), run("d", seed=2, alpha=0.1)]
    runs += [run("e", seed=3, own={"dataset": "the digest of other data"})]
    groups = [[member.name for member in group] for group in groups_of(runs)]
    assert groups == [["a", "c"], ["b"], ["d"], ["e"]]


def test_clients_below_their_accuracy_alone_are_counted(
    make_scored: MakeRun, tmp_path: Path
) -> None:
    alone = make_scored("alone", "local", [(0.6, 0.6, 0.8, None)])
    on_all = make_scored("on all", "fedbn", scored_on="test")  # fedbn's on the test split
    rows, _ = table([make_scored("fedper"), alone, on_all], tmp_path)
    below = {row["Run"]: (row["Below alone"], row["Scored on"]) for row in rows}
    assert below == {
        "fedper": ("1", "clients"),
        "alone": (NONE, "clients"),
        "on all": (NONE, NONE),
    }
    other = change(alone, {"partition": {"hash": "other"}})
    assert "Below alone" not in table([make_scored("again"), other], tmp_path)[0][0]


def test_a_time_without_clients_of_the_store_is_marked(make_run: MakeRun, tmp_path: Path) -> None:
    rows, page = table([make_run("some"), make_run("none", events=[])], tmp_path)
    assert {row["Run"]: row["Time"] for row in rows} == {"some": "9.0 s†", "none": "9.0 s"}
    assert "† Some uploads came from the store" in page


def test_dropped_clients_are_counted(make_run: MakeRun, tmp_path: Path) -> None:
    lost = change(make_run("lost"), {"dropped": {"2": "CUDA error"}})
    rows, _ = table([lost, make_run("whole")], tmp_path)
    assert {row["Run"]: row["Dropped"] for row in rows} == {"lost": "1", "whole": NONE}


def test_runs_alone_on_other_data_or_several_are_not_compared_with(
    make_scored: MakeRun, tmp_path: Path
) -> None:
    ours, alone = make_scored("ours"), make_scored("alone", "local", [(0.6, 0.6, 0.8, None)])
    other = make_scored("other", "local", [(0.9, 0.9, 0.9, 0.9)])
    change(other, {}, own={"dataset": "the digest of other data"})
    rows, page = table([ours, alone, other], tmp_path)
    assert next(row for row in rows if row["Run"] == "ours")["Below alone"] == "1"
    assert "different data sets" in page
    again = make_scored("again", "local", [(0.9, 0.9, 0.9, 0.9)])
    assert "Below alone" not in table([ours, alone, again], tmp_path)[0][0]


def test_an_unfinished_run_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    (run / "result.json").unlink()
    with pytest.raises(UserError, match=r"not finished: it has no result\.json"):
        write_comparison([run], tmp_path / "compare.html")


def test_the_command_writes_the_page(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "pages" / "compare.html"
    asked = [str(make_run("a")), str(make_run("b")), "-o", str(page)]
    assert run_command(regenerate, "report", asked) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert page.exists()
