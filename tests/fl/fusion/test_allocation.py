"""How many samples each decoder draws of each class, by each of the rules."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fl.fusion.synthesis import client_shares, label_share, label_share_of, squared_counts

COUNTS = arrays(
    np.int64,
    array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.integers(0, 40) | st.integers(0, 10**6),
)
HELD = COUNTS.filter(lambda counts: bool(counts.sum(axis=1).all()))
TOTALS = st.integers(0, 20_000)
examples = settings(max_examples=100, deadline=None, derandomize=True)


@examples
@given(counts=COUNTS, total=TOTALS)
def test_squared_counts_follow_the_released_codes_formula(counts: np.ndarray, total: int) -> None:
    allocation = squared_counts(counts, total)
    assert allocation.dtype == np.int64
    decoders, classes = counts.shape
    quota = total // classes
    for c in range(classes):
        squares = [int(counts[k, c]) ** 2 for k in range(decoders)]
        for k in range(decoders):
            expected = quota * squares[k] // sum(squares) if sum(squares) else 0
            assert allocation[k, c] == expected


@examples
@given(counts=COUNTS, total=TOTALS)
def test_squared_counts_fill_a_class_to_its_quota_but_for_rounding(
    counts: np.ndarray, total: int
) -> None:
    quota = total // counts.shape[1]
    held = counts.sum(axis=0) > 0
    class_totals = squared_counts(counts, total).sum(axis=0)
    assert (class_totals <= quota).all()
    assert (class_totals[held] > quota - len(counts)).all()
    assert (class_totals[~held] == 0).all()


def test_a_class_of_one_holder_is_all_his_and_a_class_of_none_is_left_out() -> None:
    counts = np.array([[3, 0, 1, 4], [0, 0, 1, 2]])
    expected = [[25, 0, 12, 20], [0, 0, 12, 5]]
    assert squared_counts(counts, 103).tolist() == expected


@examples
@given(counts=HELD, total=TOTALS)
def test_a_label_share_is_known_from_one_decoders_counts(counts: np.ndarray, total: int) -> None:
    rows = [label_share_of(own, total, k, len(counts)) for k, own in enumerate(counts)]
    assert np.array_equal(rows, label_share(counts, total))


@examples
@given(counts=HELD, total=TOTALS)
def test_label_shares_are_each_decoders_own_distribution_rounded(
    counts: np.ndarray, total: int
) -> None:
    allocation = label_share(counts, total)
    assert allocation.dtype == np.int64
    assert allocation.shape == counts.shape
    for row, own_counts in zip(allocation, counts, strict=True):
        own_total = int(row.sum())
        for share, count in zip(row.tolist(), own_counts.tolist(), strict=True):
            exact = Fraction(own_total * count, int(own_counts.sum()))
            assert exact - 1 < share < exact + 1
            assert share == 0 or count > 0


@examples
@given(counts=HELD, total=TOTALS)
def test_label_shares_give_every_decoder_the_same_total(counts: np.ndarray, total: int) -> None:
    totals = label_share(counts, total).sum(axis=1)
    assert totals.sum() == total
    assert totals.max() - totals.min() <= 1
    assert (np.diff(totals) <= 0).all()  # the first ones make one more


def test_label_shares_are_exact_where_they_divide() -> None:
    counts = np.array([[1, 3, 0], [2, 0, 2]])
    assert label_share(counts, 16).tolist() == [[2, 6, 0], [4, 0, 4]]


def test_the_largest_remainder_is_rounded_up_and_of_equal_ones_the_first() -> None:
    assert label_share(np.array([[10, 25, 65]]), 10).tolist() == [[1, 3, 6]]
    assert label_share(np.array([[1, 5, 4]]), 4).tolist() == [[0, 2, 2]]


@examples
@given(counts=HELD)
def test_one_decoders_label_shares_do_not_depend_on_the_others(counts: np.ndarray) -> None:
    together = label_share(counts, 100 * len(counts))
    for k, own in enumerate(counts):
        assert np.array_equal(together[k], label_share(own[None], 100)[0])


def test_decoders_draw_in_proportion_to_their_clients_data() -> None:
    counts = np.array([[30, 0, 30], [0, 20, 0], [20, 0, 0]])

    def drawn(total: int) -> np.ndarray:
        return client_shares(counts, total, [np.random.default_rng(k) for k in range(3)])

    rows = drawn(1000)
    assert rows.sum(axis=1).tolist() == [600, 200, 200]
    assert np.all(rows[counts == 0] == 0)
    assert abs(rows[0, 0] - 300) < 60  # five standard deviations
    assert drawn(7).sum() == 7
