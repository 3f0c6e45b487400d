"""The digits kept in the package are scikit-learn's, split as scikit-learn splits."""

import numpy as np
import pytest

from fl.data.datasets import enlarge, read_digits


def test_the_kept_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.model_selection import train_test_split

    digits = datasets.load_digits()
    rows = np.arange(len(digits.target))
    splits = train_test_split(rows, test_size=0.2, random_state=0, stratify=digits.target)
    kept = read_digits()
    for chosen, part in zip(splits, ("train", "test"), strict=True):
        assert np.array_equal(kept[f"{part}_images"][:, 0], enlarge(digits.images[chosen]))
        assert np.array_equal(kept[f"{part}_labels"], digits.target[chosen])
