from dataclasses import replace
from pathlib import Path

import pytest

from cluster.checks import store_checks
from cluster.checks.found import Found, look_around
from cluster.checks.run_checks import GPUS, run_checks
from cluster.hardware.gpus import Gpu


@pytest.fixture
def found(tmp_path: Path) -> Found:
    return look_around(tmp_path, {"PATH": ""})


def test_gpus_that_the_driver_offers_pass(found: Found) -> None:
    assert GPUS.perform(found).status == "skipped"
    gpu = Gpu(uuid="GPU-1", name="H200", memory_bytes=1)
    result = GPUS.perform(replace(found, machine=replace(found.machine, gpus=(gpu, gpu))))
    assert (result.status, result.finding) == ("passed", "the driver offers 2")


def test_a_driver_that_fails_is_a_failure(found: Found) -> None:
    result = GPUS.perform(replace(found, driver_error="running without GPUs: status 9"))
    assert (result.status, result.finding) == ("failed", "running without GPUs: status 9")
    assert "CUDA_VISIBLE_DEVICES" in result.advice


def test_without_ray_what_needs_it_is_skipped(found: Found, tmp_path: Path) -> None:
    results = list(run_checks(found, tmp_path, "127.0.0.1:1"))
    status = {result.name: (result.status, result.finding) for result in results}
    assert len(status) == len(results)
    assert status["Ray"][0] == "failed"
    for name in ("shared device", "memory cap", "NCCL"):
        assert status[name] == ("skipped", "no Ray")
    for name in ("distance filter", "fit over ranks"):
        assert status[name][0] == "passed"
    assert all(status[check.name][0] == "passed" for check in store_checks.CHECKS)
