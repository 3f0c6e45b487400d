"""The kernels that plan, sum, measure and select, each by itself.

Where there is no GPU they are compiled for a Hopper, which needs its compiler alone: the
interpreter accepts much that the compiler does not.
"""

import numpy as np
import pytest
import torch

from kernels.batched import TorchGroups
from kernels.exact import rounding, unit_for
from kernels.groups import quotas
from tests.kernels.cases import DEVICE, compiled_elsewhere, interpreted_or_on_cuda, run

pytestmark = pytest.mark.gpu

PLAN = {"order": "*i64", "bounds": "*i64", "piece_ends": "*i64"}
SAMPLES = {"num_features": "i32", "num_classes": "i32", "row_stride": "i32", "steps": "i32"}
ONES = dict.fromkeys(("num_features", "num_classes", "row_stride", "steps"), 1)
"""What is 1 is a constant to Triton."""
DEFAULTS = {"feature_stride": 1, "block": 2048, "piece": 128, "rows": 16, "features": 256}
SUMS = {"constant": "fp32", "constant_bits": "i32"}
THRESHOLDS = {
    **{"distances": "*fp32", "bounds": "*i64", "quotas": "*i64", "thresholds": "*i32"},
    **{"histograms": "*i32", "known": "i32", "digits": "i32"},
}
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
    "thresholds": ("thresholds_kernel", THRESHOLDS, {"block": 256}),
    "thresholds of many": ("thresholds_kernel", THRESHOLDS, {"block": 4096}),
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
@pytest.mark.parametrize("programs", [1, 2, 3])
def test_a_threshold_is_found_in_blocks_of_any_size(block: int, programs: int) -> None:
    """Of the second of three classes six of eight stay: many are as far as the threshold."""
    from kernels.triton_groups import thresholds_kernel

    bounds = torch.tensor([0, 2, 10, 10], device=DEVICE)
    by_class = torch.tensor([0.5, 9.0, 1.0, 2.0, 2.0, 3.0, 2.0, 2.0, 0.0, 2.0], device=DEVICE)
    quota = torch.tensor([1, 6, 0], device=DEVICE)
    histograms = torch.zeros(3, 4, 256, dtype=torch.int32, device=DEVICE)
    found = torch.full((3,), -1, dtype=torch.int32, device=DEVICE)
    for known, digits in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)] if programs > 1 else [(0, 4)]:
        written = (histograms, found, known, digits)
        thresholds_kernel[(3, programs)](by_class, bounds, quota, *written, block=block)
    assert found.view(torch.float32).tolist() == [0.5, 2.0, 0.0]


@interpreted_or_on_cuda
@pytest.mark.parametrize(
    ("programs", "keep"), [(1, 0.01), (1, 0.5), (1, 1.0), (2, 0.01), (2, 1.0), (7, 0.5)]
)
def test_thresholds_are_those_of_torch_for_any_number_of_programs(
    monkeypatch: pytest.MonkeyPatch, programs: int, keep: float
) -> None:
    """A large class, a small and an empty one; distances of all sizes, and many equal ones."""
    from kernels import triton_groups

    monkeypatch.setattr(triton_groups, "SELECTED", 100)
    monkeypatch.setattr(triton_groups, "PROGRAMS", 3 * programs)
    stream = torch.Generator().manual_seed(0)
    distances = torch.cat(
        (torch.rand(500, generator=stream), 10 ** (80 * torch.rand(700, generator=stream) - 42))
    )
    distances[500:900:2] = 0.25
    distances[0], distances[1], distances[1000] = 0, torch.inf, 2.0**-149
    labels = 2 * (torch.rand(1200, generator=stream) < 0.1).long()
    flat, labels = distances.unsqueeze(1).to(DEVICE), labels.to(DEVICE)
    torch_groups = TorchGroups(flat, labels, 3)
    quota = quotas(torch_groups.bounds.diff(), keep)
    found = triton_groups.TritonGroups(flat, labels, 3).thresholds(flat[:, 0], quota)
    assert torch.equal(found, torch_groups.thresholds(flat[:, 0], quota))
