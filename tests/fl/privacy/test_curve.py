"""ROC curves: what is known of them without computing one."""

import numpy as np
import pytest

from fl.privacy.measure import Curve


def test_scores_that_part_members_from_others_find_all() -> None:
    found = Curve.of(np.arange(10.0, 20), np.arange(10.0))
    assert (found.auc, found.error) == (1.0, 0.0)
    assert found.at["0.01"].value == 1
    assert found.at["0.01"].low == pytest.approx(0.025 ** (1 / 10))  # Clopper and Pearson's
    assert Curve.of(np.arange(10.0), np.arange(10.0, 20)).auc == 0


def test_equal_scores_tell_nothing() -> None:
    found = Curve.of(np.zeros(50), np.zeros(60))
    assert found.auc == 0.5
    assert found.at["0.001"].value == 0


def test_noise_is_a_coin_within_its_error() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 2000))
    found = Curve.of(*draws)
    assert abs(found.auc - 0.5) < 3 * found.error
    assert found.error == pytest.approx(np.sqrt(1 / 12 / 1000), rel=0.05)
    assert found.at["0.01"].low <= 0.01 <= found.at["0.01"].high


def test_no_more_others_are_accused_than_the_rate_allows() -> None:
    others = np.arange(100.0)
    assert Curve.of(np.array([98.5, 99.5]), others).at["0.01"].value == 1.0
    assert Curve.of(np.array([98.5, 99.5]), others).at["0.001"].value == 0.5
