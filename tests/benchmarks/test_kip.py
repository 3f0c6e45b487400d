"""The benchmark of KIP's steps: what it times does the same work, and it tells of all."""

import json
from pathlib import Path

import kip
import pytest
import torch
import tyro

TINY = kip.Options(images=6, targets=3, features=12, depth=2, steps=4, rounds=1, threads=(1,))
WAYS = ["bare products", "layers", "loss and gradient", "whole step", "plain autograd"]


def test_every_way_is_told_with_its_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    assert kip.main(kip.Options(**{**vars(TINY), "json": file})) == 0
    printed = capsys.readouterr().out
    assert "6 images of 12 pixels, batches of 3, depth 2, 4 steps; threads: 1" in printed
    machine, *ways = map(json.loads, file.read_text().splitlines())
    assert machine["sizes"] == {"images": 6, "targets": 3, "features": 12, "depth": 2}
    rows = {way["name"]: way for way in ways if way["threads"] == 1}
    assert list(rows) == WAYS
    for name, row in rows.items():
        assert name in printed
        assert 0 < row["lowest"] <= row["ms"] <= row["highest"]
        assert row["over_bare"] == row["ms"] / rows["bare products"]["ms"]


def test_plain_autograd_and_ours_end_with_the_same_loss() -> None:
    rows = kip.measure(TINY)
    losses = [rows[name]["last_loss"] for name in ("whole step", "plain autograd")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert rows["bare products"]["last_loss"] is None


def test_every_learner_starts_afresh_and_lowers_the_loss() -> None:
    problem = kip.Problem(TINY)
    start = problem.support.clone()
    for step in kip.ways(problem).values():
        if isinstance(step, kip.Learning):
            before = step.loss()
            for number in range(20):
                step(number)
            assert step.loss() < before
    assert torch.equal(problem.support, start)


@pytest.mark.parametrize("arguments", [["--threads", "two"], ["--sizes", "3"]])
def test_arguments_that_make_no_sense_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        tyro.cli(kip.Options, args=arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err
