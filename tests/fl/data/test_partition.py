"""Partitions: whatever the kind, by Dirichlet's distribution, by classes, and hold-outs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fl.data.datasets import load
from fl.data.partition import Kind, PartitionConfig, hold_out, validated
from fl.errors import UserError
from tests.fl.data.cuts import BALANCED, assert_sound, classes_held, cut, sizes


@settings(max_examples=60)
@given(
    num_clients=st.integers(1, 40),
    alpha=st.floats(0.05, 100),
    kind=st.sampled_from(["dirichlet", "mixture", "classes", "iid"]),
    test_fraction=st.sampled_from([0.0, 0.2, 0.5]),
    recut=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_partition_is_sound(
    num_clients: int, alpha: float, kind: Kind, test_fraction: float, recut: bool, seed: int
) -> None:
    assume(kind == "dirichlet" or not recut)
    labels = BALANCED[:4000]
    config = PartitionConfig(kind=kind, min_samples=3, test_fraction=test_fraction, recut=recut)
    partition = cut(num_clients, config, labels=labels, alpha=alpha, seed=seed)
    assert_sound(partition, labels, num_clients)
    assert sizes(partition).min() >= 3
    dealt = sum(map(len, (*partition.train, *partition.test)))
    if recut or kind == "mixture":
        assert dealt == num_clients * (4000 // num_clients)
    elif kind != "classes" or num_clients * 2 >= 10:
        assert dealt == 4000


@pytest.mark.parametrize("kind", ["dirichlet", "mixture", "classes", "iid"])
def test_the_seed_decides(kind: Kind) -> None:
    config = PartitionConfig(kind=kind, test_fraction=0.1)
    first, again, other = (cut(12, config, seed=seed) for seed in (3, 3, 4))
    assert first.digest == again.digest != other.digest
    assert len(first.digest) == 16
    assert all(np.array_equal(a, b) for a, b in zip(first.train, again.train, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(first.test, again.test, strict=True))


def test_iid_deals_every_sample_evenly() -> None:
    partition = cut(7, PartitionConfig(kind="iid"))
    assert sizes(partition).sum() == 60_000
    assert np.ptp(sizes(partition)) <= 1
    assert np.abs(partition.counts - 857).max() < 150


@pytest.mark.parametrize("kind", ["dirichlet", "mixture", "classes", "iid"])
def test_the_hold_out_is_a_share_of_each_client(kind: Kind) -> None:
    whole = cut(12, PartitionConfig(kind=kind))
    parted = cut(12, PartitionConfig(kind=kind, test_fraction=0.2))
    assert_sound(parted, BALANCED, 12)
    assert all(len(indices) == 0 for indices in whole.test)
    for all_own, train, test in zip(whole.train, parted.train, parted.test, strict=True):
        assert np.array_equal(np.union1d(train, test), all_own)
        assert len(test) == round(0.2 * len(all_own))
    assert parted.digest != whole.digest


def test_each_client_draws_its_own_hold_out() -> None:
    partition = cut(2, PartitionConfig(kind="iid", test_fraction=0.2))
    first, second = (
        np.isin(np.union1d(train, test), test)
        for train, test in zip(partition.train, partition.test, strict=True)
    )
    assert not np.array_equal(first, second)


def test_the_minimum_counts_training_samples_only() -> None:
    labels = BALANCED[:1000]
    config = PartitionConfig(kind="iid", min_samples=10, test_fraction=0.5)
    assert sizes(cut(50, config, labels=labels)).min() == 10
    with pytest.raises(UserError, match="51 clients of 20 samples or more need 1020 samples"):
        cut(51, config, labels=labels)


def test_ten_thousand_clients() -> None:
    partition = cut(10_000, PartitionConfig(min_samples=3), alpha=0.3)
    assert sizes(partition).min() >= 3
    assert len(np.unique(np.concatenate(partition.train))) == 60_000


def test_validation_takes_a_share_of_each_clients_training_samples() -> None:
    whole = cut(12, PartitionConfig(test_fraction=0.2))
    held = validated(whole, BALANCED, 10, 0.25, seed=0)
    assert_sound(held, BALANCED, 12)
    for before, train, drawn in zip(whole.train, held.train, held.test, strict=True):
        assert len(drawn) == round(0.25 * len(before))
        assert np.array_equal(np.union1d(train, drawn), before)
    assert len(held.digest) == 16
    assert held.digest != whole.digest


def test_the_seed_decides_which_samples_validate() -> None:
    whole = cut(5)
    first, again, other = (validated(whole, BALANCED, 10, 0.2, seed=s) for s in (0, 0, 1))
    assert first.digest == again.digest != other.digest


def test_validation_is_drawn_apart_from_the_test_samples() -> None:
    """The same share of the same samples, by the same seed: others all the same."""
    tested = cut(5, PartitionConfig(test_fraction=0.2))
    held = validated(cut(5), BALANCED, 10, 0.2, seed=0)
    assert not any(np.array_equal(a, b) for a, b in zip(tested.test, held.test, strict=True))


@pytest.mark.parametrize(("share", "left"), [(0.0, 3), (0.5, 1), (0.8, 1), (0.9, 0), (1.0, 0)])
def test_validation_leaves_each_client_a_sample_or_is_refused(share: float, left: int) -> None:
    whole = cut(2, PartitionConfig(kind="iid", min_samples=3), labels=BALANCED[:6])
    if left:
        assert sizes(validated(whole, BALANCED[:6], 10, share, seed=0)).tolist() == [left, left]
    else:
        with pytest.raises(
            UserError, match=rf"validation {share:g} leaves a client no training sample"
        ):
            validated(whole, BALANCED[:6], 10, share, seed=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "dirichelt"}, "unknown kind 'dirichelt'; valid: classes, dirichlet"),
        ({"classes_per_client": 0}, "classes_per_client must be at least 1, got 0"),
        ({"min_samples": 0}, "min_samples must be at least 1, got 0"),
        ({"kind": "iid", "recut": True}, "recut needs kind dirichlet, got iid"),
        ({"test_fraction": 1.0}, r"test_fraction must be in \[0, 1\), got 1.0"),
        ({"test_fraction": -0.1}, r"test_fraction must be in \[0, 1\), got -0.1"),
        ({"test_fraction": float("nan")}, r"test_fraction must be in \[0, 1\), got nan"),
    ],
)
def test_wrong_settings_are_refused_at_once(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PartitionConfig(**wrong)  # type: ignore[arg-type]


DIGITS = load("digits", Path(), max_train=200, max_test=50)


def rows(images: np.ndarray) -> list[bytes]:
    return [image.tobytes() for image in images]


def test_training_images_are_parted_and_the_test_split_is_gone() -> None:
    held = hold_out(DIGITS, 0.1, seed=0)
    assert (len(held.train.labels), len(held.test.labels)) == (180, 20)
    everything = rows(held.train.images) + rows(held.test.images)
    assert sorted(everything) == sorted(rows(DIGITS.train.images))
    pairs = dict(zip(rows(DIGITS.train.images), DIGITS.train.labels, strict=True))
    for split in (held.train, held.test):
        assert [pairs[row] for row in rows(split.images)] == split.labels.tolist()


def test_the_seed_alone_decides_which() -> None:
    first, again, other = (hold_out(DIGITS, 0.1, seed=s).test.images for s in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_neither_part_may_be_empty(share: float) -> None:
    with pytest.raises(UserError, match=r"data\.validation"):
        hold_out(DIGITS, share, seed=0)


@pytest.mark.parametrize(("num_clients", "per_client"), [(5, 2), (7, 3), (10, 1), (30, 10)])
def test_classes_deals_every_class(num_clients: int, per_client: int) -> None:
    config = PartitionConfig(kind="classes", classes_per_client=per_client)
    partition = cut(num_clients, config)
    assert_sound(partition, BALANCED, num_clients)
    assert ((partition.counts > 0).sum(axis=1) == per_client).all()
    assert (partition.counts.sum(axis=0) == 6000).all()
    holders = (partition.counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in partition.counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_classes_without_a_holder_are_left_out() -> None:
    partition = cut(2, PartitionConfig(kind="classes", classes_per_client=3))
    assert ((partition.counts > 0).sum(axis=1) == 3).all()
    assert sizes(partition).sum() == 6 * 6000


@pytest.mark.parametrize("num_clients", [1, 10, 11, 25])
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


CLASSES = PartitionConfig(kind="classes", classes_per_client=1)
UNEVEN = np.repeat(np.arange(10), [100] + [5] * 9)


@pytest.mark.parametrize(
    ("num_clients", "how", "message"),
    [
        (6001, {}, r"6001 clients of 10 .* need 60010 samples, there are 6000"),
        (0, {}, "0 clients; allowed: 1 or more"),
        (-3, {}, "-3 clients; allowed: 1 or more"),
        *((5, {"alpha": a}, "alpha .*; allowed: above 0") for a in (0, -0.1, math.nan, math.inf)),
        (5, {"alpha": 1e308}, "alpha .*; allowed: above 0"),
        (5, {"config": replace(CLASSES, classes_per_client=11)}, "classes_per_client 11; allowed"),
        (
            12,
            {"config": replace(CLASSES, classes_per_client=10), "labels": UNEVEN},
            "class 1 has 5 .* 12",
        ),
        (10, {"config": CLASSES, "labels": UNEVEN}, "gets 5 samples but needs 10"),
        # Two classes cannot feed ten clients when each goes to a single one.
        (
            10,
            {"alpha": 1e-6, "labels": np.arange(1000) % 2},
            r"raise alpha \(now 1e-06\), .*now 10\)$",
        ),
        (
            10,
            {"config": PartitionConfig(min_samples=99), "labels": BALANCED[:1000]},
            r"each of 10 clients 99 of 1000 .* or lower min_samples",
        ),
    ],
)
def test_what_cannot_be_met_is_refused(num_clients: int, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cut(num_clients, **how)
