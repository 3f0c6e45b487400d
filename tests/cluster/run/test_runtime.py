"""What a run computes on: this process where that is enough, else the cluster that it is for."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cluster.hardware.inventory import Inventory
from cluster.run import runtime
from cluster.run.command_line import parse
from cluster.run.options import Machine
from cluster.run.runtime import (
    EarlyRay,
    has_ray,
    open_cluster,
    open_executor,
    open_server,
    ray_cluster,
)
from cluster.scheduling.capacity import Bundle
from fl.errors import UserError
from fl.events import Events
from fl.exchange import unpack
from fl.federation import TaskInput, TaskOutput
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.server import Server, SingleServer
from tests.cluster.outcomes import uploads
from tests.fl.toy import PROBLEM, client, job_of, shard, split
from tests.waiting import wait_until

TEST = shard(2, 2, 2)
MACHINE = Inventory(node="host", cpus=3, memory_bytes=10**9, gpus=(), source="machine")


@contextmanager
def announced(published: Path) -> Iterator[None]:
    yield published.touch()
    published.unlink()


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
    def private(self, whole: Bundle, **given: Any) -> Iterator[None]:
        with self.noted("private", {"whole": whole, **given}):
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
    monkeypatch.setattr(runtime, "announced", announced)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    return made


def test_without_an_address_a_run_has_a_cluster_of_its_own(
    clusters: Clusters, tmp_path: Path
) -> None:
    with ray_cluster(Machine(), MACHINE, tmp_path):
        assert clusters.open == 1
        assert (tmp_path / "ray-address").exists()
    ((kind, given),) = clusters.entered
    assert (kind, clusters.open) == ("private", 0)
    assert given == {"whole": MACHINE.bundle}
    assert not (tmp_path / "ray-address").exists()


def test_a_cluster_that_is_named_is_joined(clusters: Clusters, tmp_path: Path) -> None:
    with ray_cluster(Machine(ray_address="head:6379"), MACHINE, tmp_path):
        pass
    assert clusters.entered == [("joined", "head:6379")]


def test_where_this_process_is_in_a_cluster_no_other_is_started(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a sweep's trials, which the sweep's cluster outlives."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    for address in (None, "head:6379"):
        with ray_cluster(Machine(ray_address=address), MACHINE, tmp_path):
            pass
    assert not clusters.entered


def test_a_process_that_has_not_imported_ray_is_in_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert not has_ray()
    assert "ray" not in sys.modules


def test_a_run_in_this_process_needs_no_cluster(clusters: Clusters, tmp_path: Path) -> None:
    with open_cluster(Machine(runtime="inprocess"), MACHINE, tmp_path) as bundles:
        assert bundles is None
    assert not clusters.entered


def where(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"pid": torch.tensor([os.getpid()])})


@contextmanager
def server(*arguments: str, bundles: Any = None) -> Iterator[Server]:
    checkpoints = Checkpoints(Path(), every=0)
    launch = parse(arguments)
    asked = (launch, PROBLEM, TEST, Events(), bundles, checkpoints)
    with open_server(*asked, inference=launch.run.inference) as opened:
        yield opened


def test_without_a_cluster_clients_train_in_this_process(tmp_path: Path) -> None:
    own = {"dataset": SimpleNamespace(train=split(3, 3, 3)), "requests": SimpleNamespace(rates={})}
    prepared: Any = SimpleNamespace(**own)
    job = job_of(where, client(0), range(9))
    here = Machine(runtime="inprocess")
    with server() as one, open_executor(here, prepared, None, one, tmp_path) as executor:
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


# The cluster that begins before it is needed.


class Cluster:
    """Instead of Ray's: what it was given, and in which threads it began and ended."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.began: threading.Thread | None = None
        self.ended: threading.Thread | None = None
        self.error: Exception | None = None

    @contextmanager
    def private(self, whole: Bundle, **given: Any) -> Iterator[None]:
        self.given, self.began = {"whole": whole, **given}, threading.current_thread()
        if self.error:
            raise self.error
        yield
        self.ended = threading.current_thread()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(runtime, "private_ray", made.private)
    monkeypatch.setattr(runtime, "import_ray", lambda: None)

    monkeypatch.setattr(runtime, "announced", announced)
    return made


def test_a_ray_that_does_not_start_is_one_line_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    over, starting = threading.Event(), list[threading.Thread]()

    @contextmanager
    def never(*_: Any, **__: Any) -> Iterator[None]:
        starting.append(threading.current_thread())
        over.wait()
        yield

    monkeypatch.setattr(runtime, "private_ray", never)
    monkeypatch.setattr(runtime, "import_ray", lambda: None)
    monkeypatch.setattr(runtime, "START_S", 0.2)
    with EarlyRay(wanted=True, fork=False) as early:
        early.begin(MACHINE)
        with pytest.raises(UserError, match=r"within 0.2 s.*--runtime inprocess"):
            early.ready().__enter__()
    wait_until(lambda: starting)
    assert starting[0].is_alive()  # and nobody waited for it
    over.set()


def test_the_cluster_begins_beside_the_launch_and_ends_when_nothing_refers_to_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    with EarlyRay(wanted=True, fork=False) as early:
        early.begin(MACHINE)
        with ray_cluster(Machine(), MACHINE, tmp_path, early):
            assert (tmp_path / "ray-address").exists()
        # The run still holds what clients sent, which lies in the cluster.
        time.sleep(0.1)
        assert cluster.ended is None
        early.end()
        wait_until(lambda: cluster.ended)
    # Ray's processes die with the thread that started them.
    assert cluster.began is cluster.ended is not threading.current_thread()
    assert cluster.given == {"whole": MACHINE.bundle, "template": None}


@pytest.mark.parametrize(
    "arguments", [["--runtime=inprocess"], ["--dry-run"], ["--ray-address=head:6379"]]
)
def test_a_launch_that_needs_no_cluster_of_its_own_begins_none(
    cluster: Cluster, arguments: list[str]
) -> None:
    with EarlyRay(wanted=parse(arguments).starts_ray, fork=True) as early:
        early.begin(MACHINE)
        assert not early.begun
    assert cluster.began is None


def test_who_waits_for_a_cluster_that_failed_is_told_why(cluster: Cluster, tmp_path: Path) -> None:
    cluster.error = UserError("too old")
    with EarlyRay(wanted=True, fork=False) as early:
        early.begin(MACHINE)
        with pytest.raises(UserError, match="too old"):
            early.ready().__enter__()


def test_a_launch_that_goes_no_further_ends_what_it_began(cluster: Cluster) -> None:
    early = EarlyRay(wanted=True, fork=False)
    early.__enter__().begin(MACHINE)
    error = UserError("bad data")
    early.__exit__(UserError, error, None)
    assert cluster.began is cluster.ended is not None
