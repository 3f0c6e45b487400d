"""onefold ls, export and rm."""

import csv
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onefold.runs import main


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, accuracy in (("one", 0.5), ("two", 0.75), ("broken-off", None)):
        (tmp_path / name).mkdir()
        settings = "method: fedavg\ndataset: digits\nalpha: 0.5\nnum_clients: 4\nseed: 7\n"
        (tmp_path / name / "config.yaml").write_text(f"{settings}versions: {{}}\n")
        if accuracy is not None:
            result = {"method": "fedavg", "dataset": "digits", "accuracy": accuracy, "rounds": 3}
            result |= {"alpha": 0.1, "clients": 10, "seed": 3, "seconds": {"total": 61.0}}
            (tmp_path / name / "result.json").write_text(json.dumps(result))
    (tmp_path / ".store").mkdir()
    return tmp_path


def listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The cells of the table's lines, but for those of their date."""
    assert main(["ls", "--output-dir", str(runs)]) == 0
    return [
        re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d  ", "", line).split(maxsplit=7)
        for line in capsys.readouterr().out.splitlines()
    ]


def test_ls_has_a_header_and_a_line_for_each_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = listed(runs, capsys)
    assert head == ["name", "date", "method", "data", "alpha", "K", "seed", "accuracy  time"]
    assert rows == [
        ["broken-off", "fedavg", "digits", "0.5", "4", "7", "\N{EN DASH}", "not finished"],
        ["one", "fedavg", "digits", "0.1", "10", "3", "0.5000", "1 min 01 s"],
        ["two", "fedavg", "digits", "0.1", "10", "3", "0.7500", "1 min 01 s"],
    ]


def test_ls_tells_when_a_run_began(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(runs / "one" / "config.yaml", (0, time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, 0))))
    assert main(["ls", "--output-dir", str(runs)]) == 0
    assert "one         2026-01-02 03:04  fedavg" in capsys.readouterr().out


def test_ls_names_another_metric_than_accuracy(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "one" / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "metric": "R2", "accuracy": -0.5}))
    assert main(["ls", "--output-dir", str(runs)]) == 0
    assert "  R2 -0.5000  1 min 01 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dataset", "shown"), [("noise0.5", "noise0.5"), ("/a/my.npz", "my"), ("/a/b.1", "b.1")]
)
def test_ls_names_data_by_its_whole_name(
    runs: Path, dataset: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "one" / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dataset": dataset}))
    _, _, row, _ = listed(runs, capsys)
    assert row[:3] == ["one", "fedavg", shown]


@pytest.mark.parametrize("config", ["- a list\n", "{", "dataset: 5\n", "method: a\n"])
def test_ls_survives_a_config_that_is_no_runs(
    runs: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "broken-off" / "config.yaml").write_text(config)
    _, row, *_ = listed(runs, capsys)
    assert row == ["broken-off", *["\N{EN DASH}"] * 6, "not finished"]


def test_export_writes_figures_and_leaves_out_what_is_not_finished(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = runs / "all.csv"
    assert main(["export", "--output-dir", str(runs), "--csv", str(table)]) == 0
    assert capsys.readouterr().out.startswith(f"{table}: 2 runs, ")
    rows = list(csv.DictReader(table.open()))
    assert [(row["run"], row["accuracy"]) for row in rows] == [("one", "0.5"), ("two", "0.75")]
    assert main(["export", "--output-dir", str(runs), "--csv", str(table), "two"]) == 0
    assert len(list(csv.DictReader(table.open()))) == 1


def test_a_strangers_words_command_neither_terminal_nor_spreadsheet(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"method": "=1+1", "dataset": "\x1b[2Jd", "accuracy": 0.5, "seconds": {"total": 1.0}}
    result |= {"alpha": 0.5, "clients": 3, "seed": 0}
    (runs / "one" / "result.json").write_text(json.dumps({**result, "@key": "-1", "loss": -1.5}))
    (runs / "two").rename(runs / "t\x1b]0;w\x07\no")
    assert main(["ls", "--output-dir", str(runs)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 4
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert r"\x1b[2Jd" in shown
    assert main(["export", "--output-dir", str(runs), "--csv", str(runs / "all.csv"), "one"]) == 0
    (row,) = csv.DictReader((runs / "all.csv").open())
    assert row["method"] == "'=1+1"
    assert row["'@key"] == "'-1"
    assert row["loss"] == "-1.5"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_rm_leaves_the_file_that_a_lock_is_a_link_to(
    runs: Path, capsys: pytest.CaptureFixture[str], link: Callable[[Path, Path], None]
) -> None:
    precious = runs / "precious"
    precious.write_text("mine")
    link(precious, runs / "one" / ".lock")
    assert main(["rm", "--output-dir", str(runs), "one", "--yes"]) == 2
    assert ".lock" in capsys.readouterr().err
    assert precious.read_text() == "mine"


def test_rm_deletes_only_what_is_named_and_meant(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["rm", "--output-dir", str(runs)]
    assert main([*base, "one"]) == 2
    assert "say --yes to do it" in capsys.readouterr().err
    assert main([*base, "../one", "--yes"]) == 2
    assert main([*base, ".store", "--yes"]) == 2
    assert (runs / "one").exists()
    assert main([*base, "one", "--yes"]) == 0
    assert sorted(p.name for p in runs.iterdir()) == [".store", "broken-off", "two"]


def test_a_damaged_result_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "one" / "result.json").write_text("{")
    base = ["--output-dir", str(runs)]
    assert listed(runs, capsys)[2][-1] == "its result.json is damaged"
    assert main(["export", *base, "--csv", str(runs / "all.csv")]) == 2
    assert "result.json is damaged: it is not valid JSON" in capsys.readouterr().err
    assert not (runs / "all.csv").exists()


@pytest.mark.parametrize("typed", [["rm"], ["export", "--csv"], ["ls", "--dir=x"], ["export"]])
def test_a_wrong_command_line_is_one_line(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    said = capsys.readouterr().err
    assert said.startswith("onefold: ")
    assert said.count("\n") == 1


def test_a_file_holds_no_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "file").touch()
    assert main(["ls", "--output-dir", str(runs / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
