"""The kernel that finds each class's threshold."""

import numpy as np
import pytest
import torch

from tests.kernels.cases import DEVICE, run
from tests.kernels.compiling import (
    assert_compiles,
    compiled_elsewhere,
    interpreted_or_on_cuda,
)

pytestmark = pytest.mark.gpu

POINTERS = {"distances": "*fp32", "bounds": "*i64", "quotas": "*i64", "thresholds": "*i32"}


@compiled_elsewhere
@pytest.mark.parametrize("block", [256, 4096])
def test_it_compiles(block: int) -> None:
    from kernels.triton_groups import thresholds_kernel

    assert_compiles(thresholds_kernel, POINTERS, {"block": block})


@interpreted_or_on_cuda
def test_a_class_larger_than_the_selection_takes_at_once() -> None:
    """More than 4096 of one class on a GPU; the blocks shrink with the class sizes elsewhere."""
    count = 5000 if DEVICE.type == "cuda" else 1100
    stream = np.random.default_rng(3)
    samples = stream.integers(-40, 40, size=(count, 1)).astype(np.float32)
    labels = np.where(np.arange(count) % 100 == 0, 1, 0)
    samples[labels == 0] -= np.round(samples[labels == 0].mean())
    found = run(samples, labels, 0.37, "triton", num_classes=8)
    for c in (0, 1):
        own = np.flatnonzero(labels == c)
        distances = found.distances.numpy()[own]
        stay = own[np.argsort(distances, kind="stable")[: int(len(own) * 37 // 100)]]
        assert sorted(stay) == [i for i in found.indices.tolist() if labels[i] == c]


@interpreted_or_on_cuda
def test_digits_of_every_size_are_told_apart() -> None:
    """Distances that differ in the first, second, third or only the last eight bits."""
    for step in (2.0**-22, 2.0**-14, 2.0**-6, 1.0, 1024.0):
        ordered = 1 + step * torch.arange(40.0)
        distances = torch.cat((ordered, -ordered)).unsqueeze(1)  # their mean is exactly 0
        order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
        found = run(distances[order], [2] * 80, 0.25, "triton")
        expected = run(distances[order], [2] * 80, 0.25, "reference")
        assert torch.equal(found.indices, expected.indices)


@interpreted_or_on_cuda
@pytest.mark.parametrize("block", [2, 4, 16])
def test_a_threshold_is_found_in_blocks_of_any_size(block: int) -> None:
    """Of the second of three classes six of eight stay: many are as far as the threshold."""
    from kernels.triton_groups import thresholds_kernel

    bounds = torch.tensor([0, 2, 10, 10], device=DEVICE)
    by_class = torch.tensor([0.5, 9.0, 1.0, 2.0, 2.0, 3.0, 2.0, 2.0, 0.0, 2.0], device=DEVICE)
    quotas = torch.tensor([1, 6, 0], device=DEVICE)
    found = torch.full((3,), -1, dtype=torch.int32, device=DEVICE)
    thresholds_kernel[(3,)](by_class, bounds, quotas, found, block=block)
    assert found.view(torch.float32).tolist() == [0.5, 2.0, 0.0]
