"""FedAF's Table 7: bytes by a closed form, which a real round sends, beside what is printed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.clients.store import Store
from cluster.run.command_line import parse
from cluster.studies.comparison import published
from cluster.studies.fedaf_table7 import (
    CLIENTS,
    IPC,
    MIB,
    PER_CLASS,
    as_markdown,
    condensed_bytes,
    measured,
    upload_of,
)
from fl.clients import Clients
from fl.data.datasets import INFO, Split
from fl.data.partition import PartitionConfig, make_partition
from fl.data.shard import Shard
from fl.events import Events
from fl.executor import InProcess
from fl.federation import Client, Request, RunSpec
from fl.fusion.fit import FitConfig
from fl.fusion.single_server import SingleServer
from fl.json_files import JsonObject
from fl.methods import fedaf
from fl.methods.fedaf import FedAFConfig
from fl.rounds import Rounds


def test_a_real_rounds_ledger_has_the_bytes_of_the_closed_form(tmp_path: Path) -> None:
    """With few blank images, the smallest network and one step, which change no upload's size."""
    info = INFO["fmnist"]
    config: FedAFConfig = parse(["--preset=fedaf-fmnist", "--method=fedaf"]).run.options
    least = {"model": "cnn", "width": 0.01, "steps": 1, "batch_size": 1, "averaged": 1}
    fit = FitConfig(epochs=1, optimizer="sgd", batch_size=4096)
    config = replace(config, condensation=replace(config.condensation, **least), fusion=fit)
    labels = np.repeat(np.arange(10), 200)
    split = Split(np.zeros((len(labels), *info.image_shape), np.uint8), labels)
    cut = make_partition(labels, CLIENTS, 10, PartitionConfig(), alpha=0.1, seed=0)
    run_spec = RunSpec.of_images(info.image_shape, num_classes=10, seed=0)
    request = Request(cpus=1, gpus=0)
    members = [
        Client(id=k, role=a.role, training=a.training, num_samples=len(own), request=request)
        for k, (a, own) in enumerate(
            zip(fedaf.assign(config, CLIENTS, run_spec), cut.train, strict=True)
        )
    ]
    events, store = Events(), Store(tmp_path / "store", tmp_path / "updates", split)
    test = Shard.from_split(split, np.arange(1), 10)
    server = SingleServer(run_spec, test, events, torch.device("cpu"))
    clients = Clients(members, cut.train, run_spec, InProcess(split), store, events)
    fedaf.run(clients, server, config, rounds=Rounds(1))
    classes = (cut.counts >= config.condensation.min_samples).sum(axis=1)
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
