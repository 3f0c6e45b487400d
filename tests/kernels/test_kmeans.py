"""What `kmeans` promises, for every backend that has it."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from kernels import Clusters, kmeans
from tests.kernels.cases import DEVICE, SEEDS, draw, fast_backends, few_examples

pytestmark = pytest.mark.gpu


def clusters(
    samples: Tensor | np.ndarray, count: int, backend: str = "auto", seed: int = 0
) -> Clusters:
    """K-means on this machine's device, its result on the CPU."""
    found = kmeans(torch.as_tensor(samples).to(DEVICE), count, seed=seed, backend=backend)
    return Clusters(found.centres.cpu(), found.nearest.cpu())


@fast_backends
@few_examples
@given(count=st.integers(1, 40), num_clusters=st.integers(1, 5), seed=SEEDS)
def test_the_result_is_a_fixed_point(
    backend: str, count: int, num_clusters: int, seed: int
) -> None:
    """Each sample's centre is the nearest, and each centre the mean of its samples."""
    samples, _ = draw([count], 3, seed)
    found = clusters(samples, num_clusters, backend, seed)
    centres = found.centres.double().numpy()
    assert centres.shape == (num_clusters, 3)
    to_all = np.sqrt(((samples[:, None] - centres) ** 2).sum(-1))
    near_tie = np.sort(to_all, 1)[:, :2]
    assume(num_clusters == 1 or (near_tie[:, 1] - near_tie[:, 0] > 1e-4).all())
    assert found.nearest.tolist() == to_all.argmin(1).tolist()
    for j in set(found.nearest.tolist()):
        mean = samples[found.nearest.numpy() == j].astype(np.float64).mean(0)
        np.testing.assert_allclose(centres[j], mean, rtol=1e-4, atol=1e-4)


@fast_backends
def test_it_finds_separate_clusters(backend: str) -> None:
    stream = np.random.default_rng(0)
    middles = np.repeat([[0, 0], [100, 0], [0, 100]], 20, 0)
    samples = (middles + stream.normal(size=(60, 2))).astype(np.float32)
    found = clusters(samples, 3, backend, seed=3).nearest.view(3, 20)
    assert (found == found[:, :1]).all()
    assert len(set(found[:, 0].tolist())) == 3


@fast_backends
def test_a_sample_between_two_centres_goes_to_the_first(backend: str) -> None:
    samples = torch.tensor([[-1.0], [0.0], [1.0]])
    for seed in range(5):
        found = clusters(samples, 2, backend, seed)
        assert found.nearest[0] != found.nearest[2]
        first = 0 if found.centres[0] < found.centres[1] else 2
        assert found.nearest[1] == found.nearest[first]


@fast_backends
def test_the_seed_decides_the_start(backend: str) -> None:
    samples, _ = draw([25], 2, seed=1)
    runs = [clusters(samples, 4, backend, seed).centres for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@fast_backends
def test_fewer_samples_than_clusters_are_their_own_centres(backend: str) -> None:
    samples = torch.tensor([[5.0, 5.0], [5.0, 5.0], [9.0, 2.0]])
    found = clusters(samples, 3, backend)
    assert torch.equal(found.centres[found.nearest], samples)


def test_unfit_values_are_refused() -> None:
    samples = torch.zeros(9, 3)
    with pytest.raises(ValueError, match="need a sample and a cluster, got 9 and 0"):
        kmeans(samples, 0, seed=0)
    with pytest.raises(ValueError, match="need a sample and a cluster, got 0 and 2"):
        kmeans(samples[:0], 2, seed=0)
    with pytest.raises(ValueError, match="reference backend is there for nearest_to_centroid"):
        kmeans(samples, 2, seed=0, backend="reference")
    samples[7, 1] = torch.nan
    with pytest.raises(ValueError, match=r"^sample 7 has NaN or infinite values$"):
        kmeans(samples, 2, seed=0)
