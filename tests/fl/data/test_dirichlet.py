"""Dirichlet partitions, and the equal pieces that the released code makes of one."""

import numpy as np
import pytest

from fl.data.partition import PartitionConfig
from fl.errors import UserError
from tests.fl.data.cuts import BALANCED, assert_sound, classes_held, cut, sizes


@pytest.mark.parametrize("num_clients", [1, 2, 6, 10, 11, 20, 25])
def test_dirichlet_deals_every_sample_and_no_client_starves(num_clients: int) -> None:
    partition = cut(num_clients, alpha=0.1)
    assert_sound(partition, BALANCED, num_clients)
    assert sizes(partition).sum() == 60_000
    assert sizes(partition).min() >= 60_000 // (2 * num_clients)


def test_label_skew_grows_as_alpha_falls() -> None:
    held = [
        np.mean([classes_held(cut(10, alpha=alpha, seed=seed)) for seed in range(5)])
        for alpha in (100, 0.5, 0.1, 0.02)
    ]
    assert held == sorted(held, reverse=True)
    assert held[0] == 10
    assert held[-1] < 3


def test_a_huge_alpha_is_even() -> None:
    assert np.abs(cut(10, alpha=1e6).counts - 600).max() < 20


@pytest.mark.filterwarnings("error")  # a division 0/0 is a warning
@pytest.mark.parametrize("alpha", [1e-300, 1e-8])
def test_a_tiny_alpha_gives_one_class_each(alpha: float) -> None:
    counts = cut(10, alpha=alpha).counts
    assert sorted(counts.max(axis=1)) == [6000] * 10


@pytest.mark.parametrize("alpha", [0.5, 0.3, 0.1])
def test_dirichlet_list_sizes_agree_with_the_reference_measurement(alpha: float) -> None:
    """Measured with the released code on 60,000 samples: 3.0k to 10.3k over ten seeds."""
    seen = np.concatenate([sizes(cut(10, alpha=alpha, seed=seed)) for seed in range(10)])
    assert 3000 <= seen.min() < 3600
    assert 8000 < seen.max() <= 12_000


def test_clients_are_dealt_to_in_groups_of_ten() -> None:
    """An eleventh client is a group of its own: it gets its share of the samples undrawn."""
    partition = cut(11, alpha=0.1)
    assert sizes(partition)[10] == pytest.approx(60_000 / 11, abs=1)
    assert partition.counts[10].min() > 450
    assert partition.counts[:10].min() < 100


def test_groups_share_the_classes_of_a_sorted_data_set() -> None:
    assert classes_held(cut(20, labels=np.sort(BALANCED), alpha=100)) == 10


@pytest.mark.parametrize("num_clients", [1, 7, 10, 33])
def test_recut_makes_equal_pieces(num_clients: int) -> None:
    partition = cut(num_clients, PartitionConfig(recut=True), alpha=0.3)
    assert_sound(partition, BALANCED, num_clients)
    assert set(sizes(partition)) == {60_000 // num_clients}


def test_recut_mixes_neighbours() -> None:
    ragged = cut(10, alpha=0.1)
    equal = cut(10, PartitionConfig(recut=True), alpha=0.1)
    stayed = sum(len(np.intersect1d(a, b)) for a, b in zip(ragged.train, equal.train, strict=True))
    assert 0.55 < stayed / 60_000 < 0.9


def test_recut_needs_no_more_than_the_mean() -> None:
    config = PartitionConfig(recut=True, min_samples=100)
    assert set(sizes(cut(600, config, alpha=0.1))) == {100}


def test_a_hopeless_dirichlet_partition_says_what_to_change() -> None:
    """Two classes cannot feed ten clients when each goes to a single one."""
    with pytest.raises(UserError, match=r"raise alpha \(now 1e-06\), change the number.*now 10\)$"):
        cut(10, labels=np.arange(1000) % 2, alpha=1e-6)


def test_a_hopeless_minimum_says_so() -> None:
    with pytest.raises(UserError, match=r"each of 10 clients 99 of 1000 .* or lower min_samples"):
        cut(10, PartitionConfig(min_samples=99), labels=BALANCED[:1000])
