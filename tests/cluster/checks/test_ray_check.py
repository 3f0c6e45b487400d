"""A Ray that does not start; tests/cluster/test_doctor.py has one that does."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from cluster.checks import ray_check
from cluster.checks.ray_check import JOIN, START, CheckedRay
from cluster.hardware.inventory import Inventory

MACHINE = Inventory(node="here", cpus=2, memory_bytes=2**30, gpus=(), source="machine")


def test_a_cluster_that_does_not_start_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    @contextmanager
    def broken(**sizes: int) -> Iterator[None]:
        given.update(sizes)
        raise RuntimeError("the raylet died\nno space left on /dev/shm")
        yield

    monkeypatch.setattr(ray_check, "private_ray", broken)
    with closing(CheckedRay(MACHINE, None)) as cluster:
        result = START.perform(cluster)
    assert given == {"cpus": 2, "gpus": 0, "memory_bytes": 2**30}
    assert (result.status, result.finding) == ("failed", "RuntimeError: no space left on /dev/shm")
    assert "/dev/shm" in result.advice


def test_a_cluster_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def hanging(**_: int) -> Iterator[None]:
        time.sleep(3)
        raise RuntimeError("too late")
        yield

    monkeypatch.setattr(ray_check, "private_ray", hanging)
    monkeypatch.setattr(ray_check, "END_S", 0.1)
    began = time.monotonic()
    with closing(CheckedRay(MACHINE, None)) as cluster:
        result = replace(START, timeout_s=0.2).perform(cluster)
    assert time.monotonic() - began < 2
    assert result.finding == "no answer within 0.2 s"


def test_where_no_cluster_answers_there_is_none_to_join() -> None:
    with closing(CheckedRay(MACHINE, "127.0.0.1:1")) as cluster:
        result = JOIN.perform(cluster)
    assert result.status == "failed"
    assert "no Ray cluster answers at 127.0.0.1:1" in result.finding
    assert "--ray-address" in result.advice
