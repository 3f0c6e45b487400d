"""FedAF's Table 7: bytes from the ledger, beside the closed form and what is printed."""

import pytest

from cluster.run.command_line import parse
from cluster.studies import fedaf_table7
from cluster.studies.comparison import published
from cluster.studies.fedaf_table7 import (
    IPC,
    PER_CLASS,
    BytesRow,
    as_markdown,
    closed_form,
    measure,
    settings,
    upload_of,
)


def test_the_ledger_is_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fedaf_table7.PER_CLASS, "fmnist", 200)
    row = measure("fmnist", 0.1, [0])
    labels = row.classes * 8 / fedaf_table7.MIB  # which classes the images are of
    assert row.ours == pytest.approx(row.closed + labels, rel=1e-9)
    assert row.closed == pytest.approx(closed_form("fmnist", row.classes))


@pytest.mark.parametrize("dataset", PER_CLASS)
def test_bytes_are_counted_of_what_the_accuracy_presets_send(dataset: str) -> None:
    for method in ("fedaf", "feddm"):
        sent = parse([f"--preset=fedaf-{dataset}", f"--method={method}"]).run.options.condensation
        counted = settings(dataset).condensation
        assert (sent.pixels, sent.min_samples) == (counted.pixels, counted.min_samples)
        assert (sent.pixels, sent.min_samples, sent.images_per_class) == ("uint8", IPC, IPC)


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


@pytest.mark.parametrize(
    ("dataset", "alpha"),
    [(name, alpha) for name, row in published()["fedaf-table7"].items() for alpha in row],
)
def test_with_the_classes_behind_it_the_closed_form_is_what_is_printed(
    dataset: str, alpha: float
) -> None:
    row = BytesRow(dataset, alpha, classes=1.0, ours=1.0)
    assert closed_form(dataset, row.papers_classes) == pytest.approx(row.paper)


def test_the_table_has_a_line_for_each_setting_and_each_upload() -> None:
    table = as_markdown([BytesRow("cifar10", 0.1, classes=3.0, ours=0.441)], [0, 1])
    assert "seeds 0, 1" in table.splitlines()[0]
    assert "| cifar10 | 0.1 | 3.0 | 0.44 | 0.44 | 0.44 | 3.0 |" in table
    starts = tuple(
        f"| {model} | {dataset} |"
        for model in published()["fedaf-table7-averaging"]
        for dataset in PER_CLASS
    )
    uploads = [line for line in table.splitlines() if line.startswith(starts)]
    assert len(uploads) == len(starts)
    assert "| convnet | cifar10 | 320,010 | 1.22 | 1.46 |" in uploads
