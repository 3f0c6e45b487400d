"""What only the Triton kernels can get wrong; interpreted where there is no GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import nearest_to_centroid
from tests.kernels.cases import DEVICE, HAS_TRITON, draw, run

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="runs in test_interpreter.py, or on CUDA")

BEYOND = 2**31 + 2**20  # elements that 32 bits cannot number


@pytest.fixture
def beyond_32_bits(tmp_path: Path) -> Tensor:
    """Half-precision elements, nearly all untouched: on a CPU a sparse file, 4 GiB on a GPU."""
    if DEVICE.type == "cuda":
        return torch.empty(BEYOND, dtype=torch.float16, device=DEVICE)
    return torch.from_file(str(tmp_path / "sparse"), shared=True, size=BEYOND, dtype=torch.float16)


@pytest.mark.parametrize("strides", [(2**30, 1), (1, 2**30)])
def test_offsets_beyond_32_bits(beyond_32_bits: Tensor, strides: tuple[int, int]) -> None:
    """Rows far apart, and features far apart: a wrapped offset would read something else."""
    values, labels = draw([2, 0, 1, 0], 3, seed=5)
    view = beyond_32_bits.as_strided((3, 3), strides)
    view.copy_(torch.tensor(values))
    found = run(view, labels, 0.5, "triton")
    expected = run(view.clone(), labels, 0.5, "reference")
    torch.testing.assert_close(found.distances, expected.distances)
    torch.testing.assert_close(found.centroids, expected.centroids)
    assert torch.equal(found.indices, expected.indices)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
def test_more_samples_than_32_bits_can_number() -> None:
    samples = torch.rand(700_001, 3073, dtype=torch.float16, device=DEVICE)
    labels = torch.randint(0, 7, (700_001,), device=DEVICE)
    found = nearest_to_centroid(samples, labels, 7, 0.8, backend="triton")
    expected = nearest_to_centroid(samples, labels, 7, 0.8, backend="torch")
    torch.testing.assert_close(found.distances, expected.distances, rtol=1e-4, atol=1e-5)
    assert len(found.indices) == len(expected.indices)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_fills_the_device_repeats_and_agrees(dtype: torch.dtype) -> None:
    """Large enough that programs run side by side: a race would show as a difference."""
    stream = torch.Generator(DEVICE).manual_seed(0)
    samples = torch.rand(50_000, 1000, device=DEVICE, generator=stream).to(dtype)
    labels = torch.randint(0, 47, (50_000,), device=DEVICE, generator=stream)
    first = nearest_to_centroid(samples, labels, 47, 0.8)
    assert first.backend == "triton"
    for _ in range(5):
        again = nearest_to_centroid(samples, labels, 47, 0.8)
        assert torch.equal(again.distances, first.distances)
        assert torch.equal(again.indices, first.indices)
    expected = nearest_to_centroid(samples, labels, 47, 0.8, backend="reference")
    torch.testing.assert_close(first.distances, expected.distances, rtol=1e-4, atol=1e-5)
    unlike = set(first.indices.tolist()) ^ set(expected.indices.tolist())
    assert len(unlike) <= 2 * 47  # at most the two at each threshold, within rounding


def test_distances_are_written_wherever_samples_are() -> None:
    """No distance is left as memory was: the output starts out poisoned."""
    samples, labels = draw([130, 1, 0, 140], 3, seed=9)
    poison = torch.full((4 * len(labels),), torch.nan, device=DEVICE)
    del poison  # the next allocation of this size gets this memory, on CUDA for certain
    found = run(samples, labels, 0.8, "triton")
    expected = run(samples, labels, 0.8, "reference")
    torch.testing.assert_close(found.distances, expected.distances)


@pytest.mark.parametrize("features", [2, 300])
def test_rows_and_features_that_do_not_fill_a_tile(features: int) -> None:
    """What lies beyond a view's last feature and row must not be read into it."""
    values, labels = draw([3, 5, 0, 2], features, seed=11)
    storage = torch.full((12, features + 9), torch.nan, device=DEVICE)
    view = storage[1:11, 4 : 4 + features]
    view.copy_(torch.tensor(values))
    found = run(view, labels, 0.6, "triton")
    expected = run(values, labels, 0.6, "reference")
    torch.testing.assert_close(found.distances, expected.distances)
    assert torch.equal(found.indices, expected.indices)


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


def test_digits_of_every_size_are_told_apart() -> None:
    """Distances that differ in the first, second, third or only the last eight bits."""
    for step in (2.0**-22, 2.0**-14, 2.0**-6, 1.0, 1024.0):
        ordered = 1 + step * torch.arange(40.0)
        distances = torch.cat((ordered, -ordered)).unsqueeze(1)  # their mean is exactly 0
        order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
        found = run(distances[order], [2] * 80, 0.25, "triton")
        expected = run(distances[order], [2] * 80, 0.25, "reference")
        assert torch.equal(found.indices, expected.indices)


def test_the_mean_of_many_pieces_keeps_its_digits() -> None:
    """2,000 pieces of 33 samples: more samples than an interpreter sums in a test's time."""
    from kernels.triton_kernels import means_kernel

    sums = torch.full((2_000, 1), 33 * 1000.1, device=DEVICE)
    bounds = torch.tensor([0, 66_000], device=DEVICE)
    piece_ends = torch.tensor([2_000], device=DEVICE)
    mean = torch.zeros(1, 1, device=DEVICE)
    means_kernel[(1, 1)](sums, bounds, piece_ends, mean, 1, rows=8, features=256)
    assert mean.item() == pytest.approx(1000.1, rel=1e-7)


@pytest.mark.parametrize("block", [1, 2, 4, 16])
def test_the_plan_of_more_classes_than_a_block(block: int) -> None:
    from kernels.triton_kernels import plan_kernel

    keys = torch.tensor([-1, 0, 0, 0, 2, 2, 2, 2, 2, 5, 6, 6, 6, 7], dtype=torch.int8)
    bounds = torch.full((8,), -1, device=DEVICE)
    piece_ends = torch.full((7,), -1, device=DEVICE)
    plan_kernel[(1,)](
        *(keys.to(DEVICE), bounds, piece_ends, len(keys), 7), steps=4, piece=2, block=block
    )
    assert bounds.tolist() == [1, 4, 4, 9, 9, 9, 10, 13]
    assert piece_ends.tolist() == [2, 2, 5, 5, 5, 6, 8]


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
