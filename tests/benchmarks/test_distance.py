"""The distance benchmark: its procedures keep the same samples, its figures are what they say."""

import time
from pathlib import Path

import distance
import distance_peers
import pytest
import torch
from distance import Distance, Times
from torch import Tensor

ROOT = Path(__file__).parents[2]


OPTIONS = Distance(device="cpu", seconds=0.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], Tensor]:
    """Inputs that take turns, of a few thousand bytes instead of a gigabyte."""
    monkeypatch.setattr(distance, "ROTATION", 4 * 60 * 5 * 3)
    return distance.draw((60, 5, 3), "cpu")


def test_inputs_are_as_many_of_each_class_in_no_order_and_equal_copies(
    small: tuple[list[Tensor], Tensor],
) -> None:
    inputs, labels = small
    assert len(inputs) == 3
    assert len({copy.data_ptr() for copy in inputs}) == 3
    assert all(torch.equal(copy, inputs[0]) for copy in inputs)
    assert inputs[0].min() >= 0
    assert inputs[0].max() < 1
    assert torch.bincount(labels).tolist() == [20, 20, 20]
    assert labels.tolist() != sorted(labels.tolist())


def test_all_procedures_keep_the_same_samples(small: tuple[list[Tensor], Tensor]) -> None:
    inputs, labels = small
    expected = distance.kernel("reference")(inputs[0], labels, 3).indices.tolist()  # type: ignore[attr-defined]
    assert len(expected) == 3 * 16
    found = distance.kernel("torch")(inputs[0], labels, 3)
    assert found.indices.tolist() == expected  # type: ignore[attr-defined]
    for peer in (distance_peers.released_procedure, distance_peers.cdist_loop):
        assert sorted(peer(inputs[0], labels, 3).tolist()) == expected  # type: ignore[attr-defined]


def test_a_peer_that_fails_is_reported_with_what_it_said(
    small: tuple[list[Tensor], Tensor],
) -> None:
    def broken(samples: Tensor, labels: Tensor, num_classes: int) -> object:
        raise RuntimeError("no kernel image")

    times = distance.measure(broken, *small, 3, OPTIONS)
    assert times == Times(remark="failed: RuntimeError: no kernel image")


def test_what_is_slow_runs_once_and_what_is_not_at_least_once_more(
    small: tuple[list[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    def counted(samples: Tensor, labels: Tensor, num_classes: int) -> object:
        runs.append(samples.data_ptr())
        time.sleep(0.001)
        return None

    times = distance.measure(counted, *small, 3, OPTIONS)
    assert (times.repetitions, len(runs)) == (1, 2)
    assert runs[0] != runs[1]  # never the samples that were read just now
    monkeypatch.setattr(distance, "SLOW", 0.0)
    assert distance.measure(counted, *small, 3, OPTIONS).remark == "one run"
    assert len(runs) == 3


def test_ratios_are_to_the_released_code_at_its_best_to_two_reads_and_to_the_bandwidth() -> None:
    times = {
        "kernel, torch": Times(median=2.0),
        "kernel, triton": Times(remark="needs CUDA and Triton"),
        "released, threads: 1": Times(median=30.0),
        "released, threads: 2": Times(median=20.0),
        "two reads": Times(median=0.5),
    }
    found = distance.ratios(times, bound=0.25)
    assert "kernel, triton" not in found
    assert found["kernel, torch"] == {
        "share_of_copy_bandwidth": 0.125,
        "released_over_this": 10.0,
        "this_over_two_reads": 4.0,
    }
    without = {name: t for name, t in times.items() if not name.startswith("released")}
    assert "released_over_this" not in distance.ratios(without, bound=0.25)["kernel, torch"]
