"""The commands for FedAF's paper: bytes from the ledger, and the comparison over rounds."""

import json
from pathlib import Path

import pytest

from cluster import fedaf_small, fedaf_table7, suite
from cluster.command_line import parse
from cluster.fedaf_table7 import closed_form, measure, upload_of


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "fmnist", "mnist-small"])
@pytest.mark.parametrize("method", ["fedaf", "feddm", "fedavg", "fedprox"])
def test_each_preset_speaks_to_all_methods_over_rounds(name: str, method: str) -> None:
    run = parse([f"--preset=fedaf-{name}", f"--method={method}"]).run
    assert run.rounds in (10, 20)
    options = run.options
    local = options.local if hasattr(options, "condensation") else options.classifier
    assert local.model == "convnet"


def test_the_ledger_is_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fedaf_table7.PER_CLASS, "fmnist", 200)
    row = measure("fmnist", 0.1, [0])
    labels = row.classes * 8 / fedaf_table7.MIB  # which classes the images are of
    assert row.ours == pytest.approx(row.closed + labels, rel=1e-9)
    assert row.closed == pytest.approx(closed_form("fmnist", row.classes))


@pytest.mark.parametrize(
    ("dataset", "classes", "printed"),
    [("fmnist", 1.6, "0.06"), ("cifar10", 3.0, "0.44"), ("cifar100", 12.7, "1.94")],
)
def test_the_closed_form_at_the_papers_classes(dataset: str, classes: float, printed: str) -> None:
    assert f"{closed_form(dataset, classes):.2f}" == printed


def test_averaging_uploads_all_weights_and_batchnorms_statistics() -> None:
    count, size = upload_of("convnet", "cifar10")
    statistics = 3 * (2 * 128 * 4 + 8)
    assert (count, size) == (320_010, 4 * 320_010 + statistics)


def test_every_line_is_a_run_of_its_own(tmp_path: Path) -> None:
    runs = fedaf_small.runs([0, 1], ["*-fed*"], [f"--output-dir={tmp_path}"])
    assert len({parse(arguments).name for arguments in runs.values()}) == 3 * 6 * 2
    by_name = {line.name: parse(a).run for (line, seed), a in runs.items() if seed == 1}
    without = by_name["alpha0.02-fedaf-without-cdc"]
    assert (without.alpha, without.seed, without.options.collaboration) == (0.02, 1, 0)
    assert by_name["alpha0.1-fedaf-without-lgkm"].options.knowledge == 0
    assert by_name["alpha0.05-fedprox"].options.classifier.proximal == 0.001


def test_the_comparison_shows_means_spreads_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def finished(arguments: list[str]) -> dict:
        last = 0.6 + 0.1 * parse(arguments).run.seed
        return {
            "accuracy": last,
            "best_accuracy": 0.8,
            "accuracy_curve": [0.3, 0.8, last],
            "bytes_up": 2**20,
            "seconds": {"total": 1.0},
        }

    monkeypatch.setattr(suite, "_result", finished)
    out = f"--output-dir={tmp_path}"
    assert suite.main(["fedaf-small", "--only", "alpha0.1-*", "--seeds", "0,1", out]) == 0
    assert "| 0.1 | fedaf | 65.00 ± 7.07 | 80.00 ± 0.00 | 1.00 |" in capsys.readouterr().out
    kept = json.loads((tmp_path / "fedaf-small.json").read_text())["curves"]
    assert kept["alpha0.1-feddm"] == [[0.3, 0.8, 0.6], [0.3, 0.8, 0.7]]
    assert (tmp_path / "fedaf-small-alpha0.1.png").read_bytes().startswith(b"\x89PNG")
