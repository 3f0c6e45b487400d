"""What a sweep makes of its trials: states, scores, savings, the comparison, pictures, a page."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.hardware.inventory import Inventory
from fl.federation import Client, Request
from fl.spaces import Choice, Integers, LogUniform, Uniform
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tune.final import Comparison, spread
from tune.options import SweepOptions, parse_sweep
from tune.outcome import Sweep, gained, ranked, with_spread, write_sweep
from tune.plots import effects, parallel_coordinates
from tune.report import write_report
from tune.rows import best_of, read_rows
from tune.savings import savings


def event(kind: str, seconds: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "seconds": seconds, **fields}


def epoch(number: int, accuracy: float, seconds: float, stage: str = "fusion") -> dict[str, Any]:
    figures = {"accuracy": accuracy, "loss": 1 - accuracy}
    return event("epoch", seconds, stage=stage, epoch=number, epochs=3, **figures)


def end(client: int, took: float, *, reused: bool) -> dict[str, Any]:
    return event("client_end", 1.0, client=client, seconds_training=took, reused=reused)


def trial(
    folder: Path, name: str, settings: dict[str, Any], *events: Any, finished: bool = True
) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "settings.json").write_text(json.dumps(settings))
    lines = [json.dumps(e) for e in (event("run_start", 0.0), *events)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        (path / "result.json").write_text("{}")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trained = (end(0, 10.0, reused=False), end(1, 2.0, reused=False))
    reused = (end(0, 10.0, reused=True), end(1, 2.0, reused=True))
    trial(tmp_path, "default", {}, *trained, epoch(1, 0.5, 3), epoch(2, 0.6, 4))
    trial(tmp_path, "00000", {"keep": 0.5}, *reused, epoch(1, 0.9, 3), epoch(2, 0.7, 5))
    trial(tmp_path, "00001", {"keep": 0.7}, *reused, epoch(1, 0.8, 3), finished=False)
    failed = trial(tmp_path, "00002", {"keep": 0.9}, *reused, finished=False)
    (failed / "failure.txt").write_text("UserError: too few\n")
    return tmp_path


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


def test_the_best_is_the_best_last_epoch_of_those_that_finished(folder: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    best = best_of(rows, SweepOptions())
    assert best is not None
    assert best.name == "00000"  # the stopped one was better so far
    assert best_of(rows[2:], SweepOptions()) is None
    assert [row.name for row in ranked(rows, SweepOptions())][:2] == ["00000", "default"]
    lowest = best_of(rows, SweepOptions(metric="loss"))
    assert lowest is not None
    assert lowest.name == "00000"


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


def members() -> list[Client]:
    trainings = (ClassifierConfig(), GeneratorConfig())
    return [
        Client(id=k, role="r", training=t, num_samples=9, request=Request(cpus=1 / (k + 1), gpus=0))
        for k, t in enumerate(trainings)
    ]


INVENTORY = Inventory(node="n", cpus=2, memory_bytes=10**9, gpus=(), source="machine")


def test_savings_add_up_what_was_reused(folder: Path) -> None:
    saved = savings(read_rows(folder, {"keep": 0.8}), members(), INVENTORY)
    assert (saved.trained, saved.reused) == (2, 6)
    assert (saved.trained_seconds, saved.saved_seconds) == (12.0, 36.0)
    # Two of client 0 run at once, four of client 1.
    assert saved.least_seconds_saved == 3 * (10 / 2 + 2 / 4)


def test_spread_is_the_samples() -> None:
    assert spread((0.5, 0.7)).std == pytest.approx(0.1 * 2**0.5)
    assert with_spread(spread((0.5, 0.7))) == "60.0% ± 14.1"
    assert with_spread(spread((0.5,))) == "50.0%"  # one value has none
    assert gained(spread((0.01, 0.03))) == "+2.0 ± 1.4"


def comparison() -> Comparison:
    default, best = (0.5, 0.6), (0.7, 0.7)
    gain = tuple(b - d for b, d in zip(best, default, strict=True))
    return Comparison(default=spread(default), best=spread(best), gain=spread(gain))


def test_the_page_and_the_figures_of_a_sweep(folder: Path, tmp_path: Path) -> None:
    rows = read_rows(folder, {"keep": 0.8})
    options, launch = parse_sweep([])
    sweep = Sweep(
        folder=tmp_path,
        options=options,
        run=launch.run,
        space={"keep": Uniform(0.4, 1.0)},
        rows=tuple(rows),
        best=rows[1],
        comparison=comparison(),
        savings=savings(rows, members(), INVENTORY),
        seconds=20.0,
        partition="abc",
    )
    write_sweep(sweep)
    figures = json.loads((tmp_path / "result.json").read_text())
    assert figures["scored_on"] == "validation"
    assert figures["best"] == {"trial": "00000", "settings": {"keep": 0.5}, "schedule": []}
    assert figures["test"]["best"]["values"] == [0.7, 0.7]
    page = write_report(sweep).read_text()
    for word in ("UserError: too few", "stopped", "+15.0 ± 7.1", "6 reused", "at least 36"):
        assert word in page, word
    assert (tmp_path / "plots" / "effects.png").stat().st_size > 1000


@pytest.mark.parametrize("distribution", [Choice(("a", "b")), Choice((1,)), Integers(1, 4)])
def test_pictures_take_any_distribution_and_values_outside(distribution: Any) -> None:
    values = list(distribution.grid)
    outside: Any = "c" if isinstance(values[0], str) else 9
    space = {"x": distribution, "$y": LogUniform(1e-3, 1.0)}
    tried = [{"x": v, "$y": 0.01} for v in (*values, outside)]
    scores = [0.5] * len(tried)
    for figure in (parallel_coordinates(space, tried, scores, 0), effects(space, tried, scores, 0)):
        figure.canvas.draw()


def test_every_trial_is_a_line_from_its_settings_to_its_score() -> None:
    space = {"a": Uniform(0, 1), "b": LogUniform(1e-4, 1.0)}
    tried = [{"a": 0.25, "b": 1e-2}, {"a": 1.0, "b": 1.0}]
    (axes,) = parallel_coordinates(space, tried, [0.6, 0.8], best=1).axes
    lines = sorted(tuple(map(float, line.get_ydata())) for line in axes.lines)
    assert lines == [pytest.approx((0.25, 0.5, 0.0)), pytest.approx((1.0, 1.0, 1.0))]
