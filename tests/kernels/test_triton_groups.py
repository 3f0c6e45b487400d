"""What only the Triton kernels can get wrong; interpreted where there is no GPU."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels import nearest_to_centroid
from tests.kernels.cases import DEVICE, draw, interpreted_or_on_cuda, run

pytestmark = [pytest.mark.gpu, interpreted_or_on_cuda]

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
    assert torch.equal(found.centroids, expected.centroids)
    assert torch.equal(found.indices, expected.indices)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
def test_more_samples_than_32_bits_can_number() -> None:
    samples = torch.rand(700_001, 3073, dtype=torch.float16, device=DEVICE)
    labels = torch.randint(0, 7, (700_001,), device=DEVICE)
    found = nearest_to_centroid(samples, labels, 7, 0.8, backend="triton")
    expected = nearest_to_centroid(samples, labels, 7, 0.8, backend="torch")
    torch.testing.assert_close(found.distances, expected.distances)
    assert torch.equal(found.indices, expected.indices)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_fills_the_device_repeats_and_agrees(dtype: torch.dtype) -> None:
    """Large enough that programs run side by side: a race would show as a difference."""
    stream = torch.Generator(DEVICE).manual_seed(0)
    samples = torch.rand(50_000, 1000, device=DEVICE, generator=stream).to(dtype)
    labels = torch.randint(0, 47, (50_000,), device=DEVICE, generator=stream)
    first = nearest_to_centroid(samples, labels, 47, 0.8)
    for _ in range(5):
        again = nearest_to_centroid(samples, labels, 47, 0.8)
        assert torch.equal(again.distances, first.distances)
        assert torch.equal(again.indices, first.indices)
    expected = nearest_to_centroid(samples, labels, 47, 0.8, backend="reference")
    torch.testing.assert_close(first.distances, expected.distances)
    assert torch.equal(first.centroids, expected.centroids)
    assert torch.equal(first.indices, expected.indices)


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
