"""What became of each trial, as its directory tells."""

import json
from pathlib import Path

import pytest

from tests.tune.made_up import INVENTORY, end, epoch, event, members, trial
from tune.options import SweepOptions
from tune.rows import ranked, read_rows, savings


def test_without_a_fit_the_result_is_the_score(tmp_path: Path) -> None:
    path = trial(tmp_path, "00000", {})
    (path / "result.json").write_text(json.dumps({"accuracy": 0.75}))
    trial(tmp_path, "00001", {}, finished=False)
    found, stopped = read_rows(tmp_path, {})
    assert found.scores == {"epoch": 0, "accuracy": 0.75}
    assert stopped.scores == {}


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
    assert (row.trained, row.reused, row.seconds) == ({0: 10.0}, {}, 12.0)


def test_savings_add_up_what_was_reused(folder: Path) -> None:
    saved = savings(read_rows(folder, {"keep": 0.8}), members(), INVENTORY)
    assert (saved["trained"], saved["reused"]) == (2, 6)
    assert (saved["trained_seconds"], saved["saved_seconds"]) == (12.0, 36.0)
    # Two of client 0 run at once, four of client 1.
    assert saved["least_seconds_saved"] == 3 * (10 / 2 + 2 / 4)
