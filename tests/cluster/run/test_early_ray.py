"""A launch's own cluster begins early, and is ended by who began it, whatever comes between."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.hardware.inventory import Inventory
from cluster.run import early_ray
from cluster.run.command_line import parse
from cluster.run.early_ray import EarlyRay
from fl.errors import UserError
from tests.waiting import wait_until

MACHINE = Inventory(node="host", cpus=3, memory_bytes=10**9, gpus=(), source="machine")


class Cluster:
    """Instead of Ray's: what it was given, and in which threads it began and ended."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.began: threading.Thread | None = None
        self.ended: threading.Thread | None = None
        self.error: Exception | None = None

    @contextmanager
    def private(self, **given: Any) -> Iterator[None]:
        self.given, self.began = given, threading.current_thread()
        if self.error:
            raise self.error
        yield
        self.ended = threading.current_thread()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(early_ray, "private_ray", made.private)
    monkeypatch.setattr(early_ray, "import_ray", lambda: None)

    @contextmanager
    def announced(published: Path) -> Iterator[None]:
        yield published.touch()

    monkeypatch.setattr(early_ray, "announced", announced)
    return made


def test_a_ray_that_does_not_start_is_one_line_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    over = threading.Event()

    @contextmanager
    def never(**_: Any) -> Iterator[None]:
        over.wait()
        yield

    monkeypatch.setattr(early_ray, "private_ray", never)
    monkeypatch.setattr(early_ray, "import_ray", lambda: None)
    monkeypatch.setattr(early_ray, "START_S", 0.2)
    began = time.monotonic()
    with EarlyRay(parse([]), fork=False) as early:
        early.begin(MACHINE)
        with pytest.raises(UserError, match=r"within 0.2 s.*--runtime inprocess"):
            early.ready(tmp_path / "address").__enter__()
    assert time.monotonic() - began < 5
    over.set()


def test_the_cluster_begins_beside_the_launch_and_ends_when_nothing_refers_to_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    with EarlyRay(parse([]), fork=False) as early:
        early.begin(MACHINE)
        with early.ready(tmp_path / "address") as there:
            assert there
            assert (tmp_path / "address").exists()
        # The run still holds what clients sent, which lies in the cluster.
        time.sleep(0.1)
        assert cluster.ended is None
        early.end()
        wait_until(lambda: cluster.ended, seconds=30)
    # Ray's processes die with the thread that started them.
    assert cluster.began is cluster.ended is not threading.current_thread()
    assert (cluster.given["cpus"], cluster.given["template"]) == (3, None)


@pytest.mark.parametrize(
    "arguments", [["--runtime=inprocess"], ["--dry-run"], ["--ray-address=head:6379"]]
)
def test_a_launch_that_needs_no_cluster_of_its_own_begins_none(
    cluster: Cluster, tmp_path: Path, arguments: list[str]
) -> None:
    with EarlyRay(parse(arguments), fork=True) as early:
        early.begin(MACHINE)
        with early.ready(tmp_path / "address") as there:
            assert not there
    assert cluster.began is None


def test_who_waits_for_a_cluster_that_failed_is_told_why(cluster: Cluster, tmp_path: Path) -> None:
    cluster.error = UserError("too old")
    with EarlyRay(parse([]), fork=False) as early:
        early.begin(MACHINE)
        with pytest.raises(UserError, match="too old"):
            early.ready(tmp_path / "address").__enter__()


def test_a_launch_that_goes_no_further_ends_what_it_began(cluster: Cluster) -> None:
    early = EarlyRay(parse([]), fork=False)
    early.__enter__().begin(MACHINE)
    error = UserError("bad data")
    early.__exit__(UserError, error, None)
    assert cluster.began is cluster.ended is not None
