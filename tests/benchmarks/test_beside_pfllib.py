"""PFLlib beside Onefold: both sides begin alike. Its own code is not here; a stand-in is."""

import os
import sys
from pathlib import Path
from types import ModuleType

import beside_pfllib
import pytest
import torch
from beside_pfllib import BATCH, Divided, Options, Run, accuracy, federation, net_of, ours, theirs

from tests.undrawn import PAGE, draw_nothing

SERVER = """
import numpy as np


class Client:
    def __init__(self, model, samples):
        self.model, self.samples = model, samples


class FedAvg:
    def __init__(self, args, times):
        assert args.few_shot == args.client_drop_rate == args.num_new_clients == 0
        self.rounds, self.rs_test_acc, self.global_model = args.global_rounds, [], args.model
        files = [f"../dataset/{args.dataset}/train/{k}.npz" for k in range(args.num_clients)]
        held = [np.load(file, allow_pickle=True)["data"].tolist() for file in files]
        assert all(0 <= own["x"].min() < own["x"].max() <= 1 for own in held)
        self.clients = [Client(args.model, len(own["y"])) for own in held]

    def train(self):
        for _ in range(self.rounds + 1):
            self.evaluate()
        print(max(self.rs_test_acc), [client.samples for client in self.clients])
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A tiny problem, and a checkout that holds a server which trains nothing."""
    servers = tmp_path / "system" / "flcore" / "servers"
    servers.mkdir(parents=True)
    (servers / "serveravg.py").write_text(SERVER)
    return Options(checkout=tmp_path, dataset="digits", images=120, clients=2, rounds=2, lr=1e-9)


def test_both_sides_begin_with_the_same_weights_and_are_asked_about_the_same_samples(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ModuleType(PAGE)
    page.write_report = draw_nothing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PAGE, page)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # as the program's one core
    clients = federation(options, 0)
    untrained = accuracy(net_of("fedavg", 0), clients)
    assert theirs("fedavg", clients, 0, options).accuracy == untrained
    assert ours("fedavg", clients, 0, options).accuracy == untrained
    first, other = (next(net_of("fedavg", seed).parameters()) for seed in (0, 1))
    assert not torch.equal(first, other)


def test_clients_train_on_whole_batches_and_none_of_their_tests(options: Options) -> None:
    for client in federation(options, 0):
        (images, labels), (others, _) = client["train"], client["test"]
        assert len(labels) % BATCH == 0 < len(labels)
        assert not {image.tobytes() for image in images} & {image.tobytes() for image in others}


@pytest.mark.parametrize("name", ["fedavg", "fedbn"])
def test_the_divided_network_answers_as_the_whole_one(name: str) -> None:
    images, net = torch.rand(4, 1, 28, 28), net_of(name, 0)
    assert torch.equal(Divided(net)(images), net(images))
    norms = [key for key, _ in Divided(net).named_parameters() if "bn" in key]
    assert len(norms) == (4 if name == "fedbn" else 0)


def test_the_table_tells_the_mean_and_how_far_the_sides_are_apart_seed_by_seed() -> None:
    runs = [(Run(0.90, 2.0), Run(0.92, 1.0)), (Run(0.80, 4.0), Run(0.81, 3.0))]
    *_, row = beside_pfllib.table({"fedavg": runs}).splitlines()
    assert row == ("| `fedavg` | 85.00 ± 7.07 | 86.50 ± 7.78 | 1.50 ± 0.71 | 3.0 | 2.0 |")
