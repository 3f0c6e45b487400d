"""What a run computes on: this process where that is enough, else the cluster that it is for."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cluster.hardware.inventory import Inventory
from cluster.run import runtime
from cluster.run.command_line import parse
from cluster.run.runtime import has_ray, open_cluster, open_executor, open_server, ray_cluster
from cluster.scheduling.capacity import Bundle
from fl.events import Events
from fl.exchange import unpack
from fl.federation import Job, TaskInput, TaskOutput
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.server import Server, SingleServer
from tests.cluster.outcomes import uploads
from tests.fl.toy import PROBLEM, client, shard, split

TEST = shard(2, 2, 2)
MACHINE = Inventory(node="host", cpus=3, memory_bytes=10**9, gpus=(), source="machine")


class Clusters:
    """Instead of Ray's clusters: notes which were entered and which are still open."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, Any]] = []
        self.open = 0

    @contextmanager
    def joined(self, address: str) -> Iterator[None]:
        with self.noted("joined", address):
            yield

    @contextmanager
    def private(self, **given: Any) -> Iterator[None]:
        with self.noted("private", given):
            yield

    @contextmanager
    def noted(self, kind: str, given: Any) -> Iterator[None]:
        self.entered.append((kind, given))
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    made = Clusters()
    monkeypatch.setattr(runtime, "joined_ray", made.joined)
    monkeypatch.setattr(runtime, "private_ray", made.private)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    return made


def test_without_an_address_a_run_has_a_cluster_of_its_own(
    clusters: Clusters, tmp_path: Path
) -> None:
    with ray_cluster(parse([]), MACHINE, tmp_path):
        assert clusters.open == 1
    ((kind, given),) = clusters.entered
    assert (kind, clusters.open) == ("private", 0)
    assert (given["cpus"], given["gpus"], given["memory_bytes"]) == (3, 0, 10**9)
    assert given["published"] == tmp_path / "ray-address"


def test_a_cluster_that_is_named_is_joined(clusters: Clusters, tmp_path: Path) -> None:
    with ray_cluster(parse(["--ray-address=head:6379"]), MACHINE, tmp_path):
        pass
    assert clusters.entered == [("joined", "head:6379")]


def test_where_this_process_is_in_a_cluster_no_other_is_started(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a sweep's trials, which the sweep's cluster outlives."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    for arguments in ([], ["--ray-address=head:6379"]):
        with ray_cluster(parse(arguments), MACHINE, tmp_path):
            pass
    assert not clusters.entered


def test_a_process_that_has_not_imported_ray_is_in_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert not has_ray()
    assert "ray" not in sys.modules


def test_a_run_in_this_process_needs_no_cluster(clusters: Clusters, tmp_path: Path) -> None:
    launch = parse(["--runtime=inprocess"])
    with open_cluster(launch, MACHINE, tmp_path) as bundles:
        assert bundles is None
    assert not clusters.entered


def where(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"pid": torch.tensor([os.getpid()])})


@contextmanager
def server(*arguments: str, bundles: Any = None) -> Iterator[Server]:
    checkpoints = Checkpoints(Path(), every=0)
    with open_server(parse(arguments), PROBLEM, TEST, Events(), bundles, checkpoints) as opened:
        yield opened


def test_without_a_cluster_clients_train_in_this_process(tmp_path: Path) -> None:
    launch = parse(["--runtime=inprocess", f"--output-dir={tmp_path}"])
    prepared: Any = SimpleNamespace(dataset=SimpleNamespace(train=split(3, 3, 3)), rates={})
    job = Job(
        task=where,
        client=client(0),
        run_spec=PROBLEM,
        indices=np.arange(9),
        broadcast=None,
        payload=None,
    )
    with server() as one, open_executor(launch, prepared, None, one) as executor:
        (packed,) = uploads(executor, [job]).values()
    assert unpack(bytes(packed))[0]["pid"].tolist() == [os.getpid()]


def test_one_rank_needs_no_process_of_its_own() -> None:
    """On cores, with a cluster or without."""
    here = SimpleNamespace(all=(Bundle(name="0", cpus=2, gpus=0, memory_bytes=0),))
    for bundles in (None, here):
        with server(bundles=bundles) as one:
            assert isinstance(one, SingleServer)
            assert one.size == 1


def test_the_server_asks_and_tests_in_the_arithmetic_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cluster.hardware.bundles.gpu_names", lambda _: {})  # it asks a cluster
    where: Any = SimpleNamespace(all=(Bundle(name="0", cpus=2, gpus=0, memory_bytes=0),), nodes={})
    for arguments in ([], ["--fusion-ranks=2"]):
        with server(*arguments, bundles=where) as opened:
            assert opened.inference == "fp32"
        with server(*arguments, "--inference=bf16", bundles=where) as opened:
            assert opened.inference == "bf16"
            assert opened.size == 1 + len(arguments)
