"""A client's samples as tensors, and the digest that names them."""

import numpy as np
import torch

from fl.data.datasets import Split
from fl.data.shard import Shard, shard_digest
from tests.fl.data.fake_files import fake_images

SPLIT = Split(fake_images(10, 3, 4, 4), np.arange(10) % 3)


def test_a_shard_holds_its_samples_scaled_to_one() -> None:
    shard = Shard.from_split(SPLIT, np.array([1, 4, 9]), 5)
    assert len(shard) == 3
    assert shard.images.dtype == torch.float32
    assert shard.images.shape == (3, 3, 4, 4)
    assert torch.equal((shard.images * 255).round().byte(), torch.tensor(SPLIT.images[[1, 4, 9]]))
    assert shard.images.max() <= 1
    assert shard.labels.dtype == torch.int64
    assert shard.labels.tolist() == [1, 1, 0]
    assert shard.label_counts.tolist() == [1, 2, 0, 0, 0]


def test_a_shard_shares_no_memory_with_the_split() -> None:
    shard = Shard.from_split(SPLIT, np.arange(10), 3)
    shard.labels.zero_()
    assert SPLIT.labels.sum() > 0


def test_a_shard_may_be_empty() -> None:
    shard = Shard.from_split(SPLIT, np.array([], dtype=np.int64), 3)
    assert len(shard) == 0
    assert shard.label_counts.tolist() == [0, 0, 0]


def test_the_digest_follows_content_not_position() -> None:
    shifted = Split(np.roll(SPLIT.images, 1, axis=0), np.roll(SPLIT.labels, 1))
    indices = np.array([0, 3, 5])
    digest = shard_digest(SPLIT, indices)
    assert digest == shard_digest(shifted, indices + 1)
    assert len(digest) == 64


def test_the_digest_changes_with_pixels_labels_and_shape() -> None:
    indices = np.arange(10)
    pixels = SPLIT.images.copy()
    pixels[0, 0, 0, 0] ^= 1
    labels = SPLIT.labels.copy()
    labels[0] += 1
    variants = [
        SPLIT,
        Split(pixels, SPLIT.labels),
        Split(SPLIT.images, labels),
        Split(SPLIT.images.reshape(10, 3, 2, 8), SPLIT.labels),
    ]
    digests = {shard_digest(split, indices) for split in variants}
    assert len(digests | {shard_digest(SPLIT, indices[:9])}) == 5
