"""Which run beside a run is the same clients' training alone."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fl.report.read import read_run
from fl.report.scores import find_alone
from tests.fl.report.conftest import MakeRun

HASH = "9c1f2ab"
RESULT: dict[str, Any] = {"partition": {"hash": HASH}, "client_accuracy": [0.5, 0.7, None, 0.9]}
ALONE = [(0.1, 0.1, None, 0.1), (0.6, 0.6, 0.8, None)]


@pytest.fixture
def run(make_scored: MakeRun) -> Path:
    return make_scored("fedper")


@pytest.fixture
def alone(make_scored: MakeRun) -> Path:
    return make_scored("alone", "local", ALONE)


def settings(run_dir: Path) -> dict[str, Any]:
    return yaml.safe_load((run_dir / "config.yaml").read_text())


def found(run_dir: Path) -> str | None:
    run = find_alone(run_dir, settings(run_dir), RESULT)
    return run.name if run else None


def dated(run_dir: Path, seconds: int) -> None:
    os.utime(run_dir / "result.json", (seconds, seconds))


def test_it_is_found_with_what_its_clients_reached(run: Path, alone: Path) -> None:
    record = read_run(run)
    assert record.alone is not None
    assert record.alone.name == "alone"
    assert record.alone.scores.tested == {0: 0.6, 1: 0.6, 2: 0.8}
    assert record.scores is not None
    assert record.scores.below(record.alone.scores) == [0]


def test_a_path_of_one_name_has_siblings_too(
    run: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    assert found(Path("fedper")) == "alone"
    monkeypatch.chdir(run)
    assert found(Path(".")) == "alone"


def test_a_run_alone_has_none(run: Path, alone: Path, make_scored: MakeRun) -> None:
    make_scored("other", "local")
    assert read_run(alone).alone is None


def test_other_methods_are_not_it(run: Path, make_scored: MakeRun) -> None:
    make_scored("fedavg", "fedavg")
    make_scored("locally", "locally")
    assert found(run) is None


@pytest.mark.parametrize(
    ("name", "value"), [("dataset", "mnist"), ("seed", 1), ("rounds", 3), ("num_clients", 5)]
)
def test_other_settings_make_it_another_run(
    run: Path, alone: Path, name: str, value: object
) -> None:
    assert found(run) == "alone"
    changed = settings(alone) | {name: value}
    (alone / "config.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    assert found(run) is None


def test_another_partition_makes_it_another_run(run: Path, make_scored: MakeRun) -> None:
    make_scored("alone", "local", partition={"kind": "iid", "hash": "another"})
    assert found(run) is None


def test_settings_of_training_may_differ(run: Path, alone: Path) -> None:
    changed = settings(alone) | {"classifier": {"lr": 0.5}}
    (alone / "config.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    assert found(run) == "alone"


def test_of_several_the_newest_counts(run: Path, alone: Path, make_scored: MakeRun) -> None:
    other = make_scored("a-later-one", "local")
    dated(alone, 100)
    dated(other, 200)
    assert found(run) == "a-later-one"
    dated(alone, 300)
    assert found(run) == "alone"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"method: local\na: [1"),
        ("config.yaml", b"method: local\n\xff\xfe"),
        ("config.yaml", b"- method: local"),
        ("config.yaml", b"nested:\n  method: local"),
        ("result.json", b'{"accuracy": 0.'),
        ("result.json", b"[" * 100_000),
        ("result.json", b"\xff\xfe"),
        ("result.json", b"[]"),
        ("result.json", b'{"partition": "9c1f2ab"}'),
        ("result.json", b'{"partition": {"hash": "9c1f2ab"}}'),
        ("result.json", b'{"partition": {"hash": "9c1f2ab"}, "client_accuracy": [null]}'),
        ("result.json", b'{"partition": {"hash": "9c1f2ab"}, "client_accuracy": ["1"]}'),
        ("result.json", b'{"partition": {"hash": "9c1f2ab"}, "client_accuracy": [7]}'),
        ("result.json", b'{"partition": {"hash": "9c1f2ab"}, "client_accuracy": {"0": 1}}'),
    ],
)
def test_a_damaged_one_is_passed_over(
    run: Path, alone: Path, make_scored: MakeRun, name: str, content: bytes
) -> None:
    dated(make_scored("whole", "local"), 100)
    (alone / name).write_bytes(content)
    assert found(run) == "whole"


def test_an_unfinished_one_is_passed_over(run: Path, alone: Path) -> None:
    (alone / "result.json").unlink()
    assert found(run) is None


def test_what_is_no_run_is_passed_over(run: Path, alone: Path) -> None:
    beside = run.parent
    (beside / "notes.txt").write_text("method: local")
    (beside / "empty").mkdir()
    (beside / "nowhere").symlink_to(beside / "gone")
    (beside / "folder" / "config.yaml").mkdir(parents=True)
    shutil.copytree(alone, beside / "odd")
    (beside / "odd" / "result.json").unlink()
    (beside / "odd" / "result.json").mkdir()
    assert found(run) == "alone"


def test_results_of_other_methods_are_not_read(
    run: Path, alone: Path, make_scored: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_scored("fedavg", "fedavg")
    read: list[Path] = []
    whole = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path)
        return whole(path)

    config = settings(run)
    monkeypatch.setattr(Path, "read_bytes", noted)
    assert find_alone(run, config, RESULT) is not None
    assert [path.parent.name for path in read if path.name == "result.json"] == ["alone"]


def test_without_a_partition_there_is_nothing_to_compare(run: Path, alone: Path) -> None:
    assert find_alone(run, settings(run), RESULT | {"partition": None}) is None


def test_an_unfinished_run_is_held_against_none(run: Path, alone: Path) -> None:
    (run / "result.json").unlink()
    record = read_run(run)
    assert record.alone is None  # which has trained for longer
    assert record.scores is not None
    assert record.scores.tested == {0: 0.5, 1: 0.7, 3: 0.9}


def test_a_run_that_lost_its_events_is_compared_by_its_result(run: Path, alone: Path) -> None:
    (run / "metrics.jsonl").unlink()
    assert read_run(run).alone is not None


def test_runs_that_score_no_clients_look_for_none(alone: Path, make_run: MakeRun) -> None:
    run = make_run("fedavg", rounds=2)
    config = settings(run) | {"rounds": 2}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "partition.json").write_text((alone / "partition.json").read_text())
    assert json.loads((alone / "result.json").read_text())["partition"]["hash"] == HASH
    record = read_run(run)
    assert (record.alone, record.scores, record.client_accuracy) == (None, None, {})


def test_models_that_were_tested_on_the_whole_split_are_held_against_none(
    run: Path, alone: Path
) -> None:
    assert read_run(run).alone is not None
    config = settings(run) | {"method": "fedbn", "tested": "personal"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    record = read_run(run)
    assert record.alone is None
    assert record.scores is not None
