"""What `kmeans_filter` promises, for every backend."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.interpreter import interpreted
from tests.kernels.cases import (
    CLASSES,
    SEEDS,
    SHARES,
    SIZES,
    draw,
    every_backend,
    fast_backends,
    few_examples,
    gap,
    quota,
    run,
    run_kmeans,
)


@every_backend
@few_examples
@given(sizes=SIZES, keep=SHARES, seed=SEEDS)
def test_one_cluster_is_the_mean(backend: str, sizes: list[int], keep: float, seed: int) -> None:
    samples, labels = draw(sizes, 5, seed)
    plain = run(samples, labels, keep, backend)
    found = run_kmeans(samples, labels, keep, backend, num_clusters=1, seed=seed)
    assert torch.equal(found.indices, plain.indices)
    assert torch.equal(found.distances, plain.distances)
    assert torch.equal(found.centroids, plain.centroids.unsqueeze(1))
    assert found.backend == backend


@fast_backends
@few_examples
@given(sizes=SIZES, clusters=st.integers(2, 4), keep=SHARES, seed=st.integers(0, 2**60))
def test_backends_agree(
    backend: str, sizes: list[int], clusters: int, keep: float, seed: int
) -> None:
    """The same seed draws the same start, and the same iterations follow."""
    samples, labels = draw(sizes, 6, seed)
    expected = run_kmeans(samples, labels, keep, "reference", num_clusters=clusters, seed=seed)
    found = run_kmeans(samples, labels, keep, backend, num_clusters=clusters, seed=seed)
    torch.testing.assert_close(found.centroids, expected.centroids, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.distances, expected.distances, rtol=1e-4, atol=1e-5)
    assume(gap(expected.distances, labels, keep) > 1e-4)
    assert torch.equal(found.indices, expected.indices)


@every_backend
@few_examples
@given(sizes=SIZES, clusters=st.integers(2, 5), keep=SHARES, seed=SEEDS)
def test_the_result_is_a_fixed_point(
    backend: str, sizes: list[int], clusters: int, keep: float, seed: int
) -> None:
    """Distances are to the nearest centre, centres the means of their samples, quotas exact."""
    samples, labels = draw(sizes, 3, seed)
    found = run_kmeans(samples, labels, keep, backend, num_clusters=clusters, seed=seed)
    centres = found.centroids.double().numpy()
    assert centres.shape == (CLASSES, clusters, 3)
    for c in range(CLASSES):
        own = np.flatnonzero(labels == c)
        if not len(own):
            assert not centres[c].any()
            continue
        to_all = np.sqrt(((samples[own, None] - centres[c]) ** 2).sum(-1))
        np.testing.assert_allclose(found.distances[own], to_all.min(1), rtol=1e-4, atol=1e-5)
        near_tie = np.sort(to_all, 1)[:, :2]
        assume((near_tie[:, 1] - near_tie[:, 0] > 1e-5).all() or len(own) < clusters)
        nearest = to_all.argmin(1)
        for j in set(nearest.tolist()):
            mean = samples[own[nearest == j]].astype(np.float64).mean(0)
            np.testing.assert_allclose(centres[c, j], mean, rtol=1e-4, atol=1e-5)
        stay = [i for i in found.indices.tolist() if labels[i] == c]
        assert len(stay) == quota(len(own), keep)
        dropped = np.setdiff1d(own, stay)
        if len(dropped):
            assert found.distances[stay].max() <= found.distances[dropped].min()


@fast_backends
def test_a_sample_between_two_centres_goes_to_the_first(backend: str) -> None:
    """Exactly between, from whichever two samples the centres start."""
    samples, labels = np.array([[-1.0], [0.0], [1.0]], np.float32), [2, 2, 2]
    seeds = range(3) if interpreted() else range(20)
    for seed in seeds:
        found = run_kmeans(samples, labels, 1.0, backend, num_clusters=2, seed=seed)
        expected = run_kmeans(samples, labels, 1.0, "reference", num_clusters=2, seed=seed)
        assert torch.equal(found.centroids, expected.centroids)


@every_backend
def test_it_finds_separate_clusters(backend: str) -> None:
    """Three tight groups a class and two stragglers each: the mean keeps what k-means drops."""
    stream = np.random.default_rng(0)
    middles = np.array([[0, 0], [100, 0], [0, 100]])
    groups = np.concatenate([m + stream.normal(size=(20, 2)) for m in middles])
    stragglers = np.array([[45.0, 30.0], [33.0, 33.0]])
    one_class = np.concatenate([groups, stragglers]).astype(np.float32)
    samples, labels = np.concatenate([one_class, one_class + 500]), np.repeat([0, 2], 62)
    assert {60, 61} <= set(run(samples, labels, 60 / 62, backend).indices.tolist())
    found = run_kmeans(samples, labels, 60 / 62, backend, num_clusters=3, seed=3)
    assert found.indices.tolist() == [*range(60), *range(62, 122)]


@every_backend
def test_the_seed_decides_the_start(backend: str) -> None:
    samples, labels = draw([25, 0, 20, 3], 2, seed=1)
    runs = [run_kmeans(samples, labels, 0.8, backend, num_clusters=4, seed=s) for s in (0, 0, 1)]
    assert torch.equal(runs[0].centroids, runs[1].centroids)
    assert not torch.equal(runs[0].centroids, runs[2].centroids)


@every_backend
def test_fewer_samples_than_clusters_are_their_own_centres(backend: str) -> None:
    samples = torch.tensor([[1.0, 0.0], [5.0, 5.0], [5.0, 5.0], [9.0, 2.0]])
    found = run_kmeans(samples, [0, 3, 3, 3], 1.0, backend, num_clusters=3)
    assert found.indices.tolist() == [0, 1, 2, 3]
    assert not found.distances.any()
    assert torch.equal(found.centroids[0], samples[[0]].expand(3, 2))
    assert set(map(tuple, found.centroids[3].tolist())) == {(5.0, 5.0), (9.0, 2.0)}


@every_backend
def test_magnitude_does_not_matter(backend: str) -> None:
    samples, labels = draw([20, 0, 9, 3], 4, seed=6)
    expected = run_kmeans(samples, labels, 0.7, backend, num_clusters=2, seed=1)
    for exponent in (-100, 40):
        scaled = np.ldexp(samples, exponent)
        found = run_kmeans(scaled, labels, 0.7, backend, num_clusters=2, seed=1)
        assert torch.equal(found.indices, expected.indices)
        torch.testing.assert_close(
            found.centroids,
            expected.centroids * 2.0**exponent,
            rtol=1e-4,
            atol=1e-5 * 2.0**exponent,
        )


@every_backend
def test_nothing_in_gives_nothing_out(backend: str) -> None:
    found = run_kmeans(torch.zeros(0, 5), [], 0.8, backend, num_clusters=3)
    assert found.indices.shape == found.distances.shape == (0,)
    assert found.centroids.shape == (CLASSES, 3, 5)
    assert not found.centroids.any()


@every_backend
def test_unfit_values_are_refused(backend: str) -> None:
    samples, labels = draw([9, 4, 0, 2], 6, seed=4)
    with pytest.raises(ValueError, match=r"^labels must be in \[0, 4\)$"):
        run_kmeans(samples, [*labels[:-1], 4], 0.5, backend, num_clusters=2)
    with pytest.raises(ValueError, match="overflow"):
        run_kmeans(samples * 1e25, labels, 0.5, backend, num_clusters=2)
    samples[7, 3] = np.nan
    with pytest.raises(ValueError, match=r"^sample 7 has NaN or infinite values$"):
        run_kmeans(samples, labels, 0.5, backend, num_clusters=2)


def test_there_must_be_a_cluster() -> None:
    with pytest.raises(ValueError, match="num_clusters must be at least 1, got 0"):
        run_kmeans(torch.zeros(2, 3), [0, 0], 0.5, num_clusters=0)
