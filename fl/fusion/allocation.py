"""How many synthetic samples each decoder makes of each class (Section 4.2.2)."""

import numpy as np


def squared_counts(label_counts: np.ndarray, total: int) -> np.ndarray:
    """The released code's rule: equal classes, shared by squared label counts.

    Each class gets ``q = floor(total / classes)`` samples, of which decoder k makes
    ``floor(q n_kc^2 / sum_j n_jc^2)``: whoever saw a class most often draws it best. A class that
    no generator client holds gets none (the released code splits it evenly, which mislabels).

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


def label_share(label_counts: np.ndarray, total: int) -> np.ndarray:
    """The paper's rule: every decoder samples by its own label distribution p_k.

    The paper leaves the total of a decoder open; here all make ``total / decoders`` (the first
    ones one more where it does not divide). Shares are rounded by largest remainder, so that each
    decoder's row sums to its total. Arguments and result as :func:`squared_counts`.
    """
    decoders, _ = label_counts.shape
    rows = []
    for k, counts in enumerate(label_counts):
        own_total = total // decoders + (k < total % decoders)
        exact = own_total * counts / counts.sum()
        row = np.floor(exact).astype(np.int64)
        # Stable: of equal remainders the lower class goes first.
        neediest = np.argsort(row - exact, kind="stable")[: own_total - row.sum()]
        row[neediest] += 1
        rows.append(row)
    return np.stack(rows)
