"""Waiting for GPUs that ended processes still hold; Ray's own count is the tests'."""

import warnings
from types import SimpleNamespace

import pytest

from cluster.hardware import bundles
from cluster.hardware.bundles import Bundles, await_gpus

GROUP = "GPU_group_aa"


def with_gpus(monkeypatch: pytest.MonkeyPatch, *available: float) -> Bundles:
    """Rooms with two GPUs of which Ray says that so many are free, one answer after another."""
    answers = list(available)
    ray = SimpleNamespace(
        cluster_resources=lambda: {GROUP: 2.0},
        available_resources=lambda: {GROUP: answers.pop(0) if answers[1:] else answers[0]},
    )
    monkeypatch.setattr(bundles, "ray", ray)
    group = SimpleNamespace(id=SimpleNamespace(hex=lambda: "aa"))
    return Bundles(group=group, all=(), nodes={})


def test_gpus_that_stay_held_are_told_of_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match=r"^1\.5 GPUs are still held 0\.1 s after") as told:
        await_gpus(with_gpus(monkeypatch, 0.5), within_s=0.1)
    (warning,) = told
    assert "\n" not in str(warning.message)


def test_gpus_that_come_free_are_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(action="error"):
        await_gpus(with_gpus(monkeypatch, 0.0, 1.0, 2.0), within_s=5)
