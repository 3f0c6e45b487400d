"""Which runs differ by their seed alone, and what their group says of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fl.report.compare import groups_of
from fl.report.read import RunRecord, read_run
from tests.fl.report.conftest import CURVE, START, MakeRun


def run_of(make_run: MakeRun, name: str, result: dict[str, Any], **settings: Any) -> RunRecord:
    run_dir: Path = make_run(name)
    for file, load, dump, changes in (
        ("config.yaml", yaml.safe_load, yaml.safe_dump, settings),
        ("result.json", json.loads, json.dumps, result),
    ):
        path = run_dir / file
        path.write_text(dump(load(path.read_text()) | changes))
    return read_run(run_dir)


def test_seeds_of_one_configuration_are_a_group_whatever_ran_them(make_run: MakeRun) -> None:
    runs = [
        run_of(make_run, "a-seed0", {"accuracy": 0.7}, seed=0),
        run_of(make_run, "other", {}, seed=1, alpha=0.1),
        run_of(make_run, "a-seed1", {"accuracy": 0.8}, seed=1, versions={"torch": "3"}),
        run_of(make_run, "a-seed2", {"accuracy": 0.9}, seed=2),
    ]
    group, other = groups_of(runs)
    assert (group.name, group.seeds) == ("a", [0, 1, 2])
    assert group.mean("accuracy") == pytest.approx(0.8)
    assert group.spread("accuracy") == pytest.approx(0.1)
    assert group.mean("seconds", "total") == 9
    assert (other.name, other.seeds, other.spread("accuracy")) == ("other", [1], None)


def test_a_seed_counts_once(make_run: MakeRun) -> None:
    runs = [run_of(make_run, name, {}, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert [group.name for group in groups_of(runs)] == ["a and 1 more", "b"]


def test_a_figure_that_one_run_lacks_has_no_mean(make_run: MakeRun) -> None:
    reached = [{"rounds_to": {"0.5": 3}}, {"rounds_to": {}}]
    runs = [run_of(make_run, f"r{k}", own, seed=k) for k, own in enumerate(reached)]
    (group,) = groups_of(runs)
    assert group.mean("rounds_to", "0.5") is None
    assert group.spread("rounds_to", "0.5") is None


def test_a_groups_curve_is_of_the_steps_that_all_have(make_run: MakeRun) -> None:
    short = run_of(make_run, "short", {}, seed=1)
    lines = (short.path / "metrics.jsonl").read_text().splitlines()
    (short.path / "metrics.jsonl").write_text("\n".join(lines[:-1]))
    (group,) = groups_of([run_of(make_run, "long", {}, seed=0), read_run(short.path)])
    assert group.curve == {0: [START] * 2, **{k: [CURVE[k]] * 2 for k in (1, 2, 3)}}
