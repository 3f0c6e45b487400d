"""What only the torch backend can get wrong."""

import pytest
import torch

from kernels.batched import PIECE, TorchGroups
from tests.kernels.cases import CLASSES, DEVICE

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5, 5000])
def test_the_largest_values_are_added_exactly(size: int) -> None:
    """All but the first have an odd number of units, next to as many as there can be."""
    samples = torch.full((size, 2), 1 - 2.0**-18, device=DEVICE)
    samples[0] = -1.0
    labels = torch.full((size,), 2, device=DEVICE)
    sums = TorchGroups(samples, labels, CLASSES).sums(2.0**-18, whole=True)
    total = (size - 1) * (2**18 - 1) - 2**18
    assert sums.units.tolist() == [[0, 0], [0, 0], [total] * 2, [0, 0]]
