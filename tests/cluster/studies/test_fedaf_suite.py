"""The commands for FedAF's paper: bytes from the ledger, and the comparison over rounds."""

from pathlib import Path

import pytest

from cluster import suite
from cluster.run.command_line import parse
from cluster.studies import fedaf_table7
from cluster.studies.cells import make
from cluster.studies.fedaf_table7 import closed_form, measure, upload_of
from cluster.studies.published import Published


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


def test_every_line_is_a_run_of_its_own() -> None:
    runs = {cell.name: parse(cell.arguments).run for cell in make("fedaf", "small")}
    assert len(runs) == 3 * 7
    assert {run.rounds for run in runs.values()} == {10}
    without = runs["mnist-alpha0.02-fedaf-without-cdc"]
    assert (without.alpha, without.options.collaboration) == (0.02, 0)
    assert runs["mnist-alpha0.1-fedaf-without-lgkm"].options.knowledge == 0
    assert runs["mnist-alpha0.1-fedaf-clipped"].options.clip == 2
    assert runs["mnist-alpha0.05-fedprox"].options.classifier.proximal == 0.001


def test_at_paper_scale_the_papers_figures_are_beside_ours() -> None:
    cells = {cell.name: cell for cell in make("fedaf", "paper")}
    assert cells["cifar10-alpha0.02-fedaf"].paper == Published(65.15, 0.86)
    assert cells["fmnist-alpha0.1-fedaf-without-cdc"].paper is None
    assert parse(cells["cifar100-alpha0.05-fedaf"].arguments).run.rounds == 20


def test_the_comparison_shows_means_spreads_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def finished(arguments: list[str]) -> dict:
        last = 0.6 + 0.1 * parse(arguments).run.seed
        return {
            "accuracy": last,
            "best_accuracy": 0.8,
            "start_accuracy": 0.1,
            "accuracy_curve": [0.3, 0.8, last],
            "bytes_up": 2**20,
            "protocol": "rounds",
            "seconds": {"total": 1.0},
        }

    monkeypatch.setattr(suite, "_result", finished)
    out = f"--output-dir={tmp_path}"
    assert suite.main(["fedaf", "--only", "mnist-alpha0.1-*", "--seeds", "0,1", out]) == 0
    told = capsys.readouterr().out
    assert "| mnist-alpha0.1 | fedaf | 65.00 ± 7.07 | 80.00 ± 0.00 | - | 1.00 |" in told
    assert (tmp_path / "fedaf-small.png").read_bytes().startswith(b"\x89PNG")
