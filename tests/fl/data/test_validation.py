"""The validation split: no client's, no test image, and the same for a seed."""

from pathlib import Path

import numpy as np
import pytest

from fl.data.datasets import load
from fl.data.partition import hold_out
from fl.errors import UserError

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
