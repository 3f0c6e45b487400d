"""The doctor's checks find what is wrong: on file systems, in memory caps, weights and filters."""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster import doctor_checks
from cluster.doctor_checks import (
    Result,
    federation,
    filters,
    lock,
    perform,
    rename,
    run_checks,
)
from fl.errors import UserError
from fl.own_process import within
from tests.cluster.fake_driver import CARDS, pretend

PAUSE_S = 0.005
"""So long a file system that is not atomic shows what is between, for a busy reader to see."""


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("check", [lock, rename])
def test_this_file_system_passes(check: Callable[[Path], str], tmp_path: Path) -> None:
    assert check(tmp_path / "new" / "runs")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        check(tmp_path / "file")


def test_a_lock_that_does_not_hold_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    result = perform("lock", partial(lock, tmp_path))
    assert (result.status, "one lock at once" in result.finding) == ("failed", True)
    assert "without nolock" in result.advice


@pytest.mark.parametrize("torn", [True, False])
def test_a_rename_that_tears_is_found(
    torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.replace

    def in_two_steps(source: Path, target: Path) -> None:
        if torn:
            target.write_bytes(source.read_bytes()[:9])
        else:
            target.unlink(missing_ok=True)
        time.sleep(PAUSE_S)
        whole(source, target)

    monkeypatch.setattr(os, "replace", in_two_steps)
    result = perform("atomic rename", partial(rename, tmp_path))
    assert result.status == "failed"
    assert ("saw part" if torn else "No such file") in result.finding
    assert not list(tmp_path.iterdir())


def test_a_check_that_hangs_is_bounded() -> None:
    over = threading.Event()
    began = time.monotonic()
    result = perform("lock", partial(within, 0.2, lambda: str(over.wait(60))))
    over.set()
    assert time.monotonic() - began < 10
    assert (result.status, result.finding) == ("failed", "no answer within 0.2 s")


def test_a_federation_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = tmp_path / "pid"
    script = f"echo $$ > {sleeper}; trap '' TERM; while :; do sleep 0.1; done"
    monkeypatch.setattr(doctor_checks, "python", lambda _: ["sh", "-c", script])
    monkeypatch.setattr(doctor_checks, "FEDERATION_S", 1.0)
    monkeypatch.setattr(doctor_checks, "END_S", 0.2)
    first, *others = federation(tmp_path, None)
    assert (first.status, first.finding) == ("failed", "no end within 1 s")
    assert {(r.status, r.finding) for r in others} == {("skipped", "the federation failed")}
    with pytest.raises(ProcessLookupError):
        os.kill(int(sleeper.read_text()), 0)


@pytest.fixture(scope="module")
def without_ray(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Result]]:
    """The federation's folder and its results on a machine without Ray."""
    folder = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_checks, "prepare_environment", no_ray)
        return folder, {result.name: result for result in federation(folder, None)}


def no_ray() -> None:
    raise UserError("Ray is not installed")


def test_without_ray_the_rest_is_checked(without_ray: tuple[Path, dict[str, Result]]) -> None:
    _, results = without_ray
    assert results["federation"].status == "passed", results
    for name in ("memory cap", "fit over ranks"):
        assert (results[name].status, results[name].finding) == ("skipped", "Ray is not installed")


def test_an_overspender_that_nothing_stops_is_found(
    without_ray: tuple[Path, dict[str, Result]],
) -> None:
    folder, _ = without_ray  # where no client has a cap
    result = perform("memory cap", partial(doctor_checks.capped, folder))
    assert (result.status, "nothing stopped it" in result.finding) == ("failed", True)
    assert "--max-actors" in result.advice


def test_a_server_that_comes_to_other_weights_is_found(
    without_ray: tuple[Path, dict[str, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = without_ray
    first, second = (folder / run / "model" for run in ("first", "second"))
    weights = load_file(first / "global.safetensors")
    second.mkdir(parents=True)
    monkeypatch.setattr(doctor_checks, "_run", lambda *_, **__: {})
    save_file(weights, second / "global.safetensors")
    assert "apart 0 at most" in doctor_checks.compared(folder, "")
    save_file({n: t * 1.01 for n, t in weights.items()}, second / "global.safetensors")
    with pytest.raises(RuntimeError, match="weights differ by up to"):
        doctor_checks.compared(folder, "")


def test_a_cluster_that_does_not_answer_is_found(tmp_path: Path) -> None:
    first, *others = federation(tmp_path, "127.0.0.1:1")
    assert first.status == "failed"
    assert "no Ray cluster answers at 127.0.0.1:1" in first.finding
    assert [result.status for result in others] == ["skipped", "skipped"]


def test_a_client_that_fails_beside_the_overspender_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {"dropped": {"1": "OverspentError: too much", "2": "ValueError: lost"}}
    monkeypatch.setattr(doctor_checks, "_run", lambda *_, **__: ended)
    with pytest.raises(RuntimeError, match="client 2 failed: ValueError: lost"):
        doctor_checks.trained(tmp_path)


def test_a_filter_that_keeps_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filters().startswith("keeps the reference's samples on ")
    right = doctor_checks.nearest_to_centroid

    def one_less(*arguments: Any, backend: str = "auto") -> Any:
        result = right(*arguments, backend=backend)
        if backend == "reference":
            object.__setattr__(result, "indices", result.indices[1:])
        return result

    monkeypatch.setattr(doctor_checks, "nearest_to_centroid", one_less)
    with pytest.raises(RuntimeError, match="differs from the reference in 1 of 4000"):
        filters()


def test_gpus_that_cannot_be_used_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    pretend(monkeypatch, *CARDS)
    with pytest.raises(RuntimeError, match="PyTorch sees none of 3 GPUs"):
        filters()
    pretend(monkeypatch, fails="NVMLError_DriverNotLoaded")
    assert "DriverNotLoaded" in perform("distance filter", filters).finding


def test_every_check_has_its_line_and_what_hangs_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def nothing(*_: object) -> Iterator[Result]:
        yield Result(name="federation", status="skipped", finding="left out")

    monkeypatch.setattr(doctor_checks, "LIMIT_S", 1.0)
    monkeypatch.setattr(doctor_checks, "federation", nothing)
    monkeypatch.setattr(doctor_checks, "lock", lambda _: str(over.wait(60)))
    monkeypatch.setattr(doctor_checks, "filters", lambda: "right")
    monkeypatch.setattr(doctor_checks, "rename", lambda _: "whole")
    status = {result.name: result.status for result in run_checks(tmp_path, None)}
    over.set()
    assert status == {
        **{"lock": "failed", "atomic rename": "passed"},
        **{"federation": "skipped", "distance filter": "passed"},
    }
