"""The study of growing numbers of clients, as a user runs it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.studies.study_options import cells, parse_study
from cluster.studies.study_report import pictures, slopes, table
from cluster.study import main
from fl.errors import UserError
from tests.cluster.commands import environment

SMALL = [
    *("--method=fedmho", "--runtime=inprocess", "--num-classifiers=1", "--data.max-test=60"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--classifier.epochs=1"),
    *("--generator.width=0.1", "--generator.epochs=2", "--allocation=label-share"),
    *("--num-samples=60", "--fusion.epochs=1"),
]


def study(output_dir: Path, *arguments: str) -> int:
    return main([*SMALL, f"--output-dir={output_dir}", *arguments])


def figures(output_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output_dir / "study.json").read_text())
    return found


@pytest.mark.slow
def test_each_number_of_clients_and_seed_is_run_and_not_repeated(tmp_path: Path) -> None:
    arguments = ("--num-clients=3,8", "--seeds=0,1", "--data.max-train=200")
    assert study(tmp_path, *arguments) == 0
    found = figures(tmp_path)["cells"]
    assert [(c["clients"], c["seed"]) for c in found] == [(3, 0), (3, 1), (8, 0), (8, 1)]
    for cell in found:
        assert cell["samples"] == 200
        assert cell["trained"] == cell["clients"]
        assert cell["bytes_up"] > 0
        assert cell["driver_peak_bytes"] > 2**26
        assert not cell["drawn_with_replacement"]
    for name in ("seconds", "memory", "bytes", "rate", "accuracy"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")}
    assert len(stamps) == 4
    assert study(tmp_path, *arguments) == 0
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")} == stamps
    assert figures(tmp_path)["cells"] == found
    assert study(tmp_path, *arguments, "--generator.epochs=3") == 2


@pytest.mark.slow
def test_what_was_interrupted_is_continued(tmp_path: Path) -> None:
    arguments = ("--num-clients=3,8", "--data.max-train=200")
    assert study(tmp_path, *arguments) == 0
    before = figures(tmp_path)["cells"]
    (tmp_path / "k8-seed0" / "study.json").unlink()
    (tmp_path / "k8-seed0" / "result.json").unlink()
    assert study(tmp_path, *arguments) == 0
    after = figures(tmp_path)["cells"]
    assert after[0] == before[0]
    assert after[1]["trained"] == 0
    assert after[1]["accuracy"] == before[1]["accuracy"]
    assert "rate" in figures(tmp_path)["slopes"]


@pytest.mark.slow
@pytest.mark.parametrize(("each", "drawn"), [(20, False), (400, True)])
def test_data_for_each_client_can_be_fixed(tmp_path: Path, each: int, drawn: bool) -> None:
    """The digits have about 1,400 training images."""
    assert study(tmp_path, "--num-clients=2,5", f"--samples-per-client={each}") == 0
    found = figures(tmp_path)["cells"]
    assert [c["samples"] for c in found] == [2 * each, 5 * each]
    assert [c["drawn_with_replacement"] for c in found] == [False, drawn]


def test_a_drawn_client_holds_samples_of_the_classes_it_is_said_to_hold() -> None:
    from cluster.run.prepare import prepare

    arguments = [*SMALL, "--num-clients=5", "--samples-per-client=400"]
    (cell,) = cells(parse_study(arguments))
    assert cell.drawn == 2000
    prepared = prepare(cell.launch, drawn=cell.drawn)
    labels = prepared.dataset.train.labels
    for own, counts in zip(prepared.partition.train, prepared.partition.counts, strict=True):
        assert np.bincount(labels[own], minlength=10).tolist() == counts.tolist()
    everything = np.concatenate(prepared.partition.train)
    assert len(everything) == 2000
    assert len(set(everything.tolist())) < len(labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-clients=3,x"], "got 'x'"),
        (["--num-clients="], "got ''"),
        (["--num-clients=0"], "at least 1"),
        (["--num-clients"], "expected one argument"),
        (["--num-clients=3", "--seeds=-1"], "at least 0"),
        (["--num-clients=3", "--samples-per-client=none"], "got 'none'"),
        (["--num-clients=3,3000"], "3000 clients of 10 samples or more need 30000 samples"),
        (
            ["--num-clients=3", "--samples-per-client=9", "--data.max-train=90"],
            "exclude each other",
        ),
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


def test_uploads_that_do_not_fit_the_disk_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=300_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert len(cells(parse_study([*SMALL, "--num-clients=3"]))) == 1
    assert study(tmp_path, "--num-clients=3,40") == 2
    said = capsys.readouterr().err
    assert "the uploads of up to 40 clients need about" in said
    assert "300.0 kB are free" in said


def test_help_names_the_studys_options() -> None:
    command = [sys.executable, "-m", "cluster.study", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    for option in ("--num-clients", "--seeds", "--samples-per-client", "cluster.launch"):
        assert option in done.stdout


def cell(clients: int, seed: int = 0, **changes: Any) -> dict[str, Any]:
    seconds = {"local": clients**1.0, "fusion": 5.0, "filter": 0.0, "total": clients + 5.0}
    return {
        "clients": clients,
        "seed": seed,
        "samples": 100,
        "drawn_with_replacement": False,
        "trained": clients,
        "seconds": seconds,
        "clients_per_second": 7.0,
        "driver_peak_bytes": clients**0.5,
        "workers": 2,
        "workers_peak_bytes": 3.0 * clients**2,
        "device_peak_bytes": None,
        "bytes_up": 10 * clients,
        "bytes_down": 0,
        "accuracy": 0.5,
        "start_accuracy": 0.1,
        **changes,
    }


def test_a_slope_is_the_power_by_which_a_curve_grows() -> None:
    found = slopes([cell(k, seed) for k in (10, 100, 1000) for seed in (0, 1)])
    assert found["seconds"]["local"] == pytest.approx(1)
    assert found["seconds"]["fusion"] == pytest.approx(0)
    assert found["memory"]["driver"] == pytest.approx(0.5)
    assert found["memory"]["workers"] == pytest.approx(2)
    assert found["bytes"] == {"up": pytest.approx(1)}
    assert "filter" not in found["seconds"]


def test_a_run_that_reused_clients_has_no_rate() -> None:
    found = slopes([cell(10), cell(100), cell(1000, trained=3, clients_per_second=1e9)])
    assert found["rate"]["clients per second"] == pytest.approx(0)


def test_one_run_has_pictures_but_no_slope() -> None:
    assert slopes([cell(10)])["seconds"] == {}
    assert set(pictures([cell(10)])) == {"seconds", "memory", "bytes", "rate", "accuracy"}


def test_the_table_says_what_cannot_be_compared() -> None:
    caption = table([cell(10), cell(20, trained=3, drawn_with_replacement=True)]).caption
    assert isinstance(caption, str)
    assert "drawn with replacement" in caption
    assert "reused" in caption
    assert table([cell(10)]).caption is None


def test_a_study_of_nothing_is_refused() -> None:
    with pytest.raises(UserError):
        parse_study(["--num-clients=,"])
