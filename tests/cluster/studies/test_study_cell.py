"""One run of the study: its figures, whether it ran already, and the memory of its processes."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.run.command_line import parse
from cluster.run.run_dir import claim
from cluster.studies import study_runs
from cluster.studies.study_runs import FIGURES, Peaks, StudyRun, figures, is_finished, peaks
from fl.events import ClientEnd, as_line
from fl.json_files import write_json
from tests.waiting import wait_until


@pytest.fixture
def cell(tmp_path: Path) -> StudyRun:
    """A run that was claimed and cut, and no more."""
    launch = parse(["--method=fedavg", f"--output-dir={tmp_path}", "--name=k3-seed0"])
    write_json(claim(launch) / "partition.json", {"counts": [[5, 0], [1, 1], [0, 3]]})
    return StudyRun(launch=launch, drawn=None)


def report(cell: StudyRun, *ends: tuple[int, int, bool]) -> None:
    """Writes what clients reported: each one's id, the round, and whether it was reused."""
    told = [ClientEnd(client=k, round=number, reused=reused) for k, number, reused in ends]
    (cell.run_dir / "metrics.jsonl").write_text("".join(map(as_line, told)))


def result(*reused: bool, local: float) -> dict[str, Any]:
    return {
        "clients": len(reused),
        "seed": 0,
        "seconds": {"local": local, "total": 9.0},
        "placements": [{"reused": each, "peak_bytes": None} for each in reused],
        **{"bytes_up": 6, "bytes_down": 0, "accuracy": 0.5, "start_accuracy": 0.1},
    }


def test_only_clients_that_were_trained_count_in_the_rate(cell: StudyRun) -> None:
    peak = Peaks(driver=100, workers=2, workers_bytes=30)
    report(cell, (0, 1, False), (1, 1, True), (2, 1, False))
    found = figures(cell, result(False, True, False, local=4.0), peak)
    assert (found["clients"], found["trained"], found["clients_per_second"]) == (3, 2, 0.5)
    assert (found["samples"], found["drawn_with_replacement"]) == (10, False)
    assert (found["driver_peak_bytes"], found["workers_peak_bytes"]) == (100, 30)
    assert figures(cell, result(True, local=0.0), peak)["clients_per_second"] == 0


def test_the_rate_counts_the_trainings_of_all_rounds(cell: StudyRun) -> None:
    report(cell, *((k, number, False) for number in (1, 2) for k in range(3)))
    found = figures(cell, result(*[False] * 3, local=4.0), Peaks())
    assert (found["trained"], found["trainings"], found["clients_per_second"]) == (6, 6, 1.5)


def test_a_finished_cell_is_known_by_its_figures(cell: StudyRun) -> None:
    assert not is_finished(cell)
    write_json(cell.run_dir / FIGURES, figures(cell, result(False, local=1.0), Peaks()))
    assert is_finished(cell)
    run = replace(cell.launch.run, rounds=2)
    assert not is_finished(replace(cell, launch=replace(cell.launch, run=run)))


@contextmanager
def process(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child of that name which waits for its end."""
    child = subprocess.Popen([name, "60"], executable="/bin/sleep")
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_the_drivers_and_its_clients_memory_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_runs, "EVERY_S", 0.01)
    with process("ray::ClientActor.run"), process("ray::RankActor"), peaks() as peak:
        held = psutil.Process().memory_info().rss
        wait_until(lambda: peak.workers, seconds=20)
        time.sleep(0.05)
    assert peak.driver >= held
    assert peak.workers == 1
    assert 0 < peak.workers_bytes < held
