"""FedAF's Table 7: bytes by a closed form, which a real round sends, beside what is printed."""

import pytest

from cluster.run.command_line import parse
from cluster.studies.comparison import published
from cluster.studies.fedaf_table7 import (
    IPC,
    MIB,
    PER_CLASS,
    as_markdown,
    condensed_bytes,
    measured,
    upload_of,
)
from fl.condensation.task import CondensationConfig
from fl.fusion.fit import FitConfig
from fl.json_files import JsonObject
from fl.methods import fedaf
from fl.methods.fedaf import FedAFConfig
from fl.rounds import Rounds
from tests.fl.methods.tiny import tiny_data, tiny_federation, tiny_partition


def test_a_real_rounds_ledger_has_the_bytes_of_the_closed_form() -> None:
    """With few images, a small network and one step, which change no upload's size."""
    least = CondensationConfig(
        images_per_class=IPC, pixels="uint8", width=0.03, steps=1, batch_size=1, min_samples=3
    )
    config = FedAFConfig(condensation=least, fusion=FitConfig(epochs=1, optimizer="sgd"))
    data = tiny_data(train=120, test=40)
    clients, server = tiny_federation(
        config, num_clients=3, alpha=0.1, assign=fedaf.assign, data=data
    )
    fedaf.run(clients, server, config, rounds=Rounds(1))
    classes = (tiny_partition(data, 3, alpha=0.1, seed=0).counts >= 3).sum(axis=1)
    assert len({*classes}) > 1
    assert list(clients.bytes_up.values()) == [condensed_bytes("fmnist", n) for n in classes]


@pytest.mark.parametrize("dataset", PER_CLASS)
def test_bytes_are_of_what_the_accuracy_presets_send(dataset: str) -> None:
    for method in ("fedaf", "feddm"):
        sent = parse([f"--preset=fedaf-{dataset}", f"--method={method}"]).run.options.condensation
        assert (sent.pixels, sent.min_samples, sent.images_per_class) == ("uint8", IPC, IPC)


@pytest.mark.parametrize(
    ("dataset", "classes", "printed"),
    [("fmnist", 1.6, "0.06"), ("cifar10", 3.0, "0.44"), ("cifar100", 12.7, "1.94")],
)
def test_the_closed_form_at_the_papers_classes(dataset: str, classes: float, printed: str) -> None:
    assert f"{condensed_bytes(dataset, classes) / MIB:.2f}" == printed


def test_averaging_uploads_all_weights_and_batchnorms_statistics() -> None:
    count, size = upload_of("convnet", "cifar10")
    statistics = 3 * (2 * 128 * 4 + 8)
    assert (count, size) == (320_010, 4 * 320_010 + statistics)


@pytest.fixture(scope="module")
def rows() -> list[JsonObject]:
    return measured([0, 1, 2])


def test_the_partition_gives_the_classes_and_bytes_of_our_page(rows: list[JsonObject]) -> None:
    found = [(round(row["classes"], 1), round(row["ours"], 2)) for row in rows]
    assert len(found) == 9
    assert found[:3] == [(1.5, 0.06), (2.4, 0.09), (2.8, 0.11)]
    assert found[-1] == (21.1, 3.17)


def test_with_the_classes_behind_it_the_closed_form_is_what_is_printed(
    rows: list[JsonObject],
) -> None:
    for row in rows:
        behind = condensed_bytes(row["dataset"], row["papers_classes"])
        assert behind / MIB == pytest.approx(row["paper"])


def test_the_table_has_a_line_for_each_setting_and_each_upload(rows: list[JsonObject]) -> None:
    lines = as_markdown(rows, [0, 1]).splitlines()
    assert "seeds 0, 1" in lines[0]
    assert "| cifar10 | 0.1 | 3.5 | 0.51 | 0.44 | 3.0 |" in lines
    starts = tuple(
        f"| {model} | {dataset} |"
        for model in published()["fedaf-table7-averaging"]
        for dataset in PER_CLASS
    )
    uploads = [line for line in lines if line.startswith(starts)]
    assert len(uploads) == len(starts)
    assert "| convnet | cifar10 | 320,010 | 1.22 | 1.46 |" in uploads
