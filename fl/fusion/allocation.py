"""How many synthetic samples each decoder makes of each class (Section 4.2.2)."""

from collections.abc import Sequence

import numpy as np


def squared_counts(label_counts: np.ndarray, total: int) -> np.ndarray:
    """The released code's rule: equal classes, shared by squared label counts.

    Each class gets ``q = floor(total / classes)`` samples, of which decoder k makes
    ``floor(q n_kc^2 / sum_j n_jc^2)``: the decoder that saw a class most often draws it best. A
    class that no generator client has gets none (the released code splits it evenly, which
    mislabels).

    Args:
        label_counts: (decoders, classes) int64, the label counts the clients uploaded.
        total: number of synthetic samples wanted, N_s.

    Returns:
        (decoders, classes) int64.
    """
    quota = total // label_counts.shape[1]
    squares = label_counts.astype(np.int64) ** 2
    class_sums = squares.sum(axis=0)
    return np.where(class_sums > 0, quota * squares // np.maximum(class_sums, 1), 0)


def label_share_of(counts: np.ndarray, total: int, position: int, decoders: int) -> np.ndarray:
    """The row of :func:`label_share` of one decoder of so many, which needs its counts alone.

    Args:
        counts: (classes,) int64, its client's label counts.
        total: number of synthetic samples wanted of all decoders.
        position: of the decoder among them, from 0.
        decoders: how many there are.

    Returns:
        (classes,) int64.
    """
    return _apportioned(counts, total // decoders + (position < total % decoders))


def label_share(label_counts: np.ndarray, total: int) -> np.ndarray:
    """The paper's rule: every decoder samples by its own label distribution p_k.

    The paper leaves the total of a decoder open; here all make ``total / decoders`` (the first
    ones one more where it does not divide). Shares are rounded by largest remainder, so that each
    decoder's row sums to its total. Arguments and result as :func:`squared_counts`.
    """
    decoders = len(label_counts)
    rows = [label_share_of(own, total, k, decoders) for k, own in enumerate(label_counts)]
    return np.stack(rows)


def client_shares(
    label_counts: np.ndarray, total: int, streams: Sequence[np.random.Generator]
) -> np.ndarray:
    """FEDCVAE's rule: decoder k's share of ``total`` is its client's share of all samples.

    Its labels are drawn from the client's own distribution p_k, by the client's own stream.
    Arguments and result as :func:`squared_counts`.
    """
    totals = _apportioned(label_counts.sum(axis=1), total)
    rows = [
        stream.multinomial(own, counts / counts.sum())
        for counts, own, stream in zip(label_counts, totals, streams, strict=True)
    ]
    return np.stack(rows).astype(np.int64)


def _apportioned(weights: np.ndarray, total: int) -> np.ndarray:
    """``total`` divided in proportion to ``weights``, by largest remainder."""
    exact = total * weights / weights.sum()
    row = np.floor(exact).astype(np.int64)
    # A stable sort, so that of equal remainders the lower index goes first.
    neediest = np.argsort(row - exact, kind="stable")[: total - row.sum()]
    row[neediest] += 1
    return row
