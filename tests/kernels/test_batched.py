"""What only the torch backend can get wrong."""

import numpy as np
import pytest
import torch

from kernels.batched import PIECE, RADIX_SIZE, TorchGroups
from tests.kernels.cases import CLASSES, DEVICE, run

pytestmark = pytest.mark.gpu

SIZES = (1, 2, 2047, 2048, 2049, 3000, RADIX_SIZE - 1, RADIX_SIZE, RADIX_SIZE + 1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("classes", [100, 1000, 40_000], ids=["8 bits", "16 bits", "32 bits"])
def test_samples_are_sorted_by_class_and_those_of_a_class_stay_in_order(
    size: int, classes: int
) -> None:
    """Around the sizes from which they are padded, and sorted another way; strangers too."""
    labels = np.random.default_rng(size).integers(-1, classes + 1, size)
    samples = torch.zeros(size, 1, device=DEVICE)
    groups = TorchGroups(samples, torch.tensor(labels, device=DEVICE), classes)
    assert groups.order.tolist() == np.argsort(labels, kind="stable").tolist()
    ends = np.searchsorted(np.sort(labels), np.arange(classes + 1))
    assert groups.bounds.tolist() == ends.tolist()


@pytest.mark.parametrize("size", SIZES)
def test_many_samples_with_many_ties(size: int) -> None:
    stream = np.random.default_rng(size)
    labels = stream.integers(0, CLASSES, size)
    samples = stream.integers(-20, 20, (size, 1)).astype(np.float32)
    found = run(samples, labels, 0.7, "torch")
    expected = run(samples, labels, 0.7, "reference")
    assert torch.equal(found.indices, expected.indices)


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5, 5000])
def test_the_largest_values_are_added_exactly(size: int) -> None:
    """All but the first have an odd number of units, next to as many as there can be."""
    samples = torch.full((size, 2), 1 - 2.0**-18, device=DEVICE)
    samples[0] = -1.0
    labels = torch.full((size,), 2, device=DEVICE)
    sums = TorchGroups(samples, labels, CLASSES).sums(2.0**-18, whole=True)
    total = (size - 1) * (2**18 - 1) - 2**18
    assert sums.units.tolist() == [[0, 0], [0, 0], [total] * 2, [0, 0]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("label", [-1, CLASSES])
def test_one_label_out_of_range_among_many_is_refused(size: int, label: int) -> None:
    labels = np.arange(size) % CLASSES
    labels[size // 2] = label
    with pytest.raises(ValueError, match="labels must be in"):
        run(torch.zeros(size, 2), labels, 0.8, "torch")
