"""A study's runs: what is refused before anything starts, their figures and their memory."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.run.run_dir import claim
from cluster.studies import study_runs
from cluster.studies.study_runs import (
    FIGURES,
    Peaks,
    StudyRun,
    cells,
    figures,
    is_finished,
    parse_study,
    peaks,
    upload_bytes,
)
from cluster.study import main
from fl.errors import UserError
from fl.events import ClientEnd, as_line
from fl.json_files import write_json
from tests.cluster.studies.small_study import SMALL
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
    child = subprocess.Popen([name, "600"], executable="/bin/sleep")
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_the_drivers_and_its_clients_memory_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_runs, "EVERY_S", 0.01)
    with process("ray::ClientActor.run"), process("ray::RankActor"), peaks() as peak:
        held = psutil.Process().memory_info().rss
        wait_until(lambda: peak.workers)
        time.sleep(0.05)
    assert peak.driver >= held
    assert peak.workers == 1
    assert 0 < peak.workers_bytes < held


# The study's options and cells: what is refused before anything starts, and drawn samples.


def study(output_dir: Path, *arguments: str) -> int:
    return main([*SMALL, f"--output-dir={output_dir}", *arguments])


def test_a_drawn_client_holds_samples_of_the_classes_it_is_said_to_hold() -> None:
    arguments = [*SMALL, "--num-clients=5", "--samples-per-client=400"]
    (cell,) = cells(*parse_study(arguments))
    assert cell.drawn == 2000
    prepared = prepare(cell.launch, drawn=cell.drawn)
    labels = prepared.dataset.train.labels
    for own, counts in zip(prepared.partition.train, prepared.partition.counts, strict=True):
        assert np.bincount(labels[own], minlength=10).tolist() == counts.tolist()
    everything = np.concatenate(prepared.partition.train)
    assert len(everything) == 2000
    assert len(set(everything.tolist())) < len(labels)
    drawn = ["--method=fedper", "--runtime=inprocess", *arguments[-2:]]
    with pytest.raises(UserError, match="so some would be trained on too"):
        cells(*parse_study(drawn))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-clients=3,x"], "got 'x'"),
        (["--num-clients="], "got ''"),
        (["--num-clients=,"], "got ''"),
        (["--num-clients=0"], "whole numbers from 1, with commas between, got '0'"),
        (["--num-clients"], "needs a value"),
        (["--num-clients=3", "--seeds=-1"], "whole numbers from 0"),
        (["--num-clients=3", "--samples-per-client=none"], "['none']"),
        (["--num-clients=3,3000"], "3000 clients of 10 samples or more need 30000 samples"),
        (
            ["--num-clients=3", "--samples-per-client=9", "--data.max-train=90"],
            "exclude each other",
        ),
        (["--num-clients=2", "--slurm"], "a study cannot use --slurm"),
        (["--num-clients=2", "--overwrite"], "a study always resumes"),
    ],
)
def test_bad_input_is_told_in_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert study(tmp_path / "new", *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "new").exists()


def disk_with(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


def test_uploads_that_do_not_fit_the_disk_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_with(300_000, monkeypatch)
    assert len(cells(*parse_study([*SMALL, "--num-clients=3"]))) == 1
    assert study(tmp_path, "--num-clients=3,40") == 2
    said = capsys.readouterr().err
    assert "the uploads of up to 40 clients need about" in said
    assert "300.0 kB are free" in said
    disk_with(1, monkeypatch)
    (tmp_path / "k3-seed0").mkdir()
    (tmp_path / "k3-seed0" / "result.json").touch()  # what is finished takes no more
    assert len(cells(*parse_study([*SMALL, f"--output-dir={tmp_path}", "--num-clients=3"]))) == 1


def test_there_is_a_run_for_each_number_and_seed_smallest_first(tmp_path: Path) -> None:
    asked = [*SMALL, f"--output-dir={tmp_path}", "--num-clients=5,3,5", "--seeds=2,0"]
    planned = cells(*parse_study(asked))
    runs = [(cell.launch.run.num_clients, cell.launch.run.seed) for cell in planned]
    assert runs == [(3, 0), (3, 2), (5, 0), (5, 2)]
    assert [cell.run_dir for cell in planned] == [tmp_path / f"k{k}-seed{s}" for k, s in runs]
    assert all(cell.launch.resume for cell in planned)  # begun or not


def test_a_run_that_was_begun_with_other_samples_or_settings_is_refused(tmp_path: Path) -> None:
    asked = [*SMALL, f"--output-dir={tmp_path}", "--num-clients=5"]
    begun = [*asked, "--samples-per-client=400"]
    (cell,) = cells(*parse_study(begun))
    cut = prepare(cell.launch, drawn=cell.drawn).partition
    write_json(claim(cell.launch) / "partition.json", {"hash": cut.digest})
    assert len(cells(*parse_study(begun))) == 1
    for given, said in (
        ([*asked, "--samples-per-client=500"], "another --samples-per-client"),
        (asked, "another --samples-per-client"),
        ([*begun, "--alpha=0.1"], r"alpha: 0\.5 -> 0\.1"),
    ):
        with pytest.raises(UserError, match=said):
            cells(*parse_study(given))


def test_uploads_grow_with_the_clients_and_their_models() -> None:
    def needed(*arguments: str) -> int:
        return upload_bytes(cells(*parse_study([*SMALL, *arguments]))[0].launch.run)

    few = needed("--num-clients=3")
    assert needed("--num-clients=4") > few
    assert needed("--num-clients=3", "--generator.width=0.2") > few
