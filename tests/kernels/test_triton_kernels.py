"""The kernels that plan, sum and measure, each by itself.

Where there is no GPU they are compiled for a Hopper, which needs its compiler alone: the
interpreter accepts much that the compiler does not.
"""

import pytest
import torch

from kernels.exact import rounding, unit_for
from tests.kernels.cases import DEVICE, compiled_elsewhere, interpreted_or_on_cuda

pytestmark = pytest.mark.gpu

PLAN = {"order": "*i64", "bounds": "*i64", "piece_ends": "*i64"}
SAMPLES = {"num_features": "i32", "num_classes": "i32", "row_stride": "i32", "steps": "i32"}
ONES = dict.fromkeys(("num_features", "num_classes", "row_stride", "steps"), 1)
"""What is 1 is a constant to Triton."""
DEFAULTS = {"feature_stride": 1, "block": 2048, "piece": 128, "rows": 16, "features": 256}
SUMS = {"constant": "fp32", "constant_bits": "i32"}
CASES = {
    "plan": ("plan_kernel", {"keys": "*i8", **PLAN, "num_keys": "i32"} | SAMPLES, {"block": 64}),
    "plan of one": ("plan_kernel", {"keys": "*i64", **PLAN}, {"num_keys": 1, "block": 2} | ONES),
    "sums": ("sums_kernel", {"flat": "*fp32", "sums": "*i64", **SUMS} | PLAN | SAMPLES, {}),
    "sums of bfloat16": (
        "sums_kernel",
        {"flat": "*bf16", "sums": "*i64", **SUMS} | PLAN | SAMPLES,
        {},
    ),
    "sums, far": (
        "sums_kernel",
        {"flat": "*fp16", "sums": "*i64", **SUMS} | PLAN | SAMPLES | {"feature_stride": "i64"},
        {},
    ),
    "sums of one": ("sums_kernel", {"flat": "*fp32", "sums": "*i64", **SUMS} | PLAN, ONES),
    "distances": (
        "distances_kernel",
        {"flat": "*fp32", "centroids": "*fp32", "distances": "*fp32", "centroid_stride": "i32"}
        | PLAN
        | SAMPLES,
        {},
    ),
    "distances of one": (
        "distances_kernel",
        {"flat": "*fp16", "centroids": "*fp32", "distances": "*fp32"} | PLAN,
        {"centroid_stride": 1} | ONES,
    ),
}


@compiled_elsewhere
@pytest.mark.parametrize("case", CASES)
def test_it_compiles(case: str) -> None:
    from compiled import compile_for

    from kernels import triton_groups

    name, types, constants = CASES[case]
    assert compile_for(90, getattr(triton_groups, name), types, DEFAULTS | constants)


@interpreted_or_on_cuda
@pytest.mark.parametrize("block", [1, 2, 4, 16])
def test_the_plan_of_more_classes_than_a_block(block: int) -> None:
    from kernels.triton_groups import plan_kernel

    keys = torch.tensor([-1, 0, 0, 0, 2, 2, 2, 2, 2, 5, 6, 6, 6, 7], dtype=torch.int8)
    bounds = torch.full((8,), -1, device=DEVICE)
    piece_ends = torch.full((7,), -1, device=DEVICE)
    plan_kernel[(1,)](
        *(keys.to(DEVICE), bounds, piece_ends, len(keys), 7), steps=4, piece=2, block=block
    )
    assert bounds.tolist() == [1, 4, 4, 9, 9, 9, 10, 13]
    assert piece_ends.tolist() == [2, 2, 5, 5, 5, 6, 8]


@interpreted_or_on_cuda
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_classes_are_summed_and_rows_measured_piece_by_piece(rows: int) -> None:
    """Two classes of five and of two samples, in pieces of at most four; a third has none."""
    from kernels.triton_groups import distances_kernel, sums_kernel

    order = torch.tensor([6, 1, 0, 3, 5, 2, 4], device=DEVICE)
    bounds = torch.tensor([0, 5, 5, 7], device=DEVICE)
    piece_ends = torch.tensor([2, 2, 3], device=DEVICE)
    flat = torch.arange(21.0, device=DEVICE).view(7, 3)
    sums = torch.zeros(3, 3, dtype=torch.int64, device=DEVICE)
    unit = unit_for(20.0)
    pieces = (order, bounds, piece_ends)
    how = {"steps": 2, "piece": 4, "rows": rows, "features": 2}
    written = (sums, *rounding(unit))
    sums_kernel[(5 * 2,)](flat, *pieces, *written, 3, 3, *flat.stride(), **how)
    for c, own in enumerate(([6, 1, 0, 3, 5], [], [2, 4])):
        assert torch.equal(sums[c] * unit, flat[own].sum(0))
    centres = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [7.0, 0.0, 1.0]], device=DEVICE)
    found = torch.full((7,), -1.0, device=DEVICE)
    grid = (5 * (4 // rows),)
    strides = (*flat.stride(), centres.stride(0))
    distances_kernel[grid](flat, *pieces, centres, found, 3, 3, *strides, **how)
    labels = torch.tensor([0, 0, 2, 0, 2, 0, 0], device=DEVICE)
    torch.testing.assert_close(found, (flat - centres[labels]).norm(dim=1))
