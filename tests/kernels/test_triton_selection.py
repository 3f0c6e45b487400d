"""The kernels that select each class's nearest samples, and list them."""

import numpy as np
import pytest
import torch

from tests.kernels.cases import DEVICE, run
from tests.kernels.compiling import (
    PLAN,
    SAMPLES,
    assert_compiles,
    compiled_elsewhere,
    interpreted_or_on_cuda,
)

CASES = {
    "select": (
        "select_kernel",
        {"distances": "*fp32", "kept": "*i8", "status": "*i64"}
        | {"numerator": "i32", "denominator": "i32"}
        | PLAN,
        {"block": 512},
    ),
    "select all": (
        "select_kernel",
        {"distances": "*fp32", "kept": "*i8", "status": "*i64"} | PLAN,
        {"numerator": 1, "denominator": 1, "block": 256},
    ),
    "count": ("count_kernel", {"kept": "*i8", "counts": "*i64", "num_samples": "i32"}, {}),
    "list": (
        "list_kernel",
        {"kept": "*i8", "counts": "*i64", "indices": "*i64", "status": "*i64"}
        | {"num_samples": "i32"}
        | PLAN
        | SAMPLES,
        {},
    ),
}


@compiled_elsewhere
@pytest.mark.parametrize("case", CASES)
def test_it_compiles(case: str) -> None:
    from kernels import triton_selection

    name, types, constants = CASES[case]
    assert_compiles(getattr(triton_selection, name), types, constants)


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
def test_the_list_of_more_samples_than_blocks_of_blocks() -> None:
    from kernels.triton_selection import count_kernel, list_kernel

    kept = torch.rand(50, generator=torch.Generator().manual_seed(0)) < 0.6
    marks, bounds = kept.to(DEVICE, torch.int8), torch.tensor([3, 5, 44], device=DEVICE)
    counts, status = bounds.new_empty(13), bounds.new_zeros(4)
    indices = bounds.new_full((50,), -1)
    count_kernel[(13,)](marks, counts, 50, block=4)
    list_kernel[(13,)](marks, counts, bounds, indices, status, 50, 2, block=4)
    total = int(kept.sum())
    assert indices[:total].tolist() == kept.nonzero().squeeze(1).tolist()
    assert (indices[total:] == -1).all()
    assert status.tolist() == [total, 3, 44, 0]


@interpreted_or_on_cuda
@pytest.mark.parametrize("block", [2, 4, 16])
def test_one_class_is_selected_in_blocks_of_any_size(block: int) -> None:
    """Three quarters of the second of two classes, in which many are as far as the threshold."""
    from kernels.triton_selection import STATUS_SIZE, select_kernel

    order = torch.tensor([3, 0, 1, 2, 4, 5, 6, 7, 8, 9], device=DEVICE)
    bounds = torch.tensor([0, 2, 10], device=DEVICE)
    far = torch.tensor([9.0, 1.0, 2.0, 0.5, 2.0, 3.0, 2.0, 2.0, 0.0, 2.0], device=DEVICE)
    kept = torch.zeros(10, dtype=torch.int8, device=DEVICE)
    status = torch.zeros(STATUS_SIZE, dtype=torch.int64, device=DEVICE)
    select_kernel[(2,)](far[order], order, bounds, kept, status, 3, 4, block=block)
    # Of the first class one of two stays; of the second six of eight, not 5 and not 9.
    assert kept.nonzero().squeeze(1).tolist() == [1, 2, 3, 4, 6, 7, 8]
    largest = status[3].to(torch.int32).view(torch.float32)
    assert largest.item() == 9.0
