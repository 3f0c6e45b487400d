"""What condensation starts from: real images by class, however few there are."""

import pytest
import torch
from torch import Tensor

from fl.condensation.task import NOISE_MEAN, NOISE_STD, ByClass
from fl.data.shard import Shard
from tests.fl.toy import CPU

LABELS = torch.tensor([2, 0, 2, 4, 0, 2, 0, 0])
"""Four of class 0, three of class 2, one of class 4, of six classes."""


def data(min_samples: int = 1, labels: Tensor = LABELS) -> ByClass:
    """Image i has a single bright pixel, the i-th: sums of images tell whose they are."""
    images = torch.eye(len(labels)).view(len(labels), 1, 1, len(labels))
    return ByClass(Shard(images, labels, 6), min_samples, CPU)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shown(images: Tensor, per_class: int) -> list[Tensor]:
    """Of each class, how often each image was taken, (N,)."""
    return list(images.flatten(1).view(-1, per_class, len(LABELS)).sum(1))


@pytest.mark.parametrize(
    ("min_samples", "classes"), [(1, [0, 2, 4]), (2, [0, 2]), (4, [0]), (5, [])]
)
def test_classes_with_too_few_samples_are_left_out(min_samples: int, classes: list[int]) -> None:
    found = data(min_samples)
    assert found.classes.tolist() == classes
    assert len(list(found)) == len(classes)


def test_it_yields_all_images_of_each_class_in_turn() -> None:
    for c, images in zip((0, 2, 4), data(), strict=True):
        assert torch.equal(images.flatten(1).sum(0), (c == LABELS).float())


@pytest.mark.parametrize("averaged", [1, 2, 5])
def test_each_image_starts_as_the_mean_of_so_many_of_its_class(averaged: int) -> None:
    """Some of them perhaps twice: a class may have fewer."""
    start = data().start(3, averaged, stream(), noise=False)
    assert start.shape == (9, 1, 1, len(LABELS))
    for position, image in enumerate(start):
        taken = image.flatten() * averaged
        torch.testing.assert_close(taken, taken.round())
        assert taken.sum().item() == pytest.approx(averaged)
        own = (0, 2, 4)[position // 3] == LABELS
        assert taken[~own].sum() == 0


def test_noise_is_around_the_middle_of_the_pixels_range_and_of_no_image() -> None:
    noise = data().start(400, 5, stream(), noise=True)
    assert noise.shape == (1200, 1, 1, len(LABELS))
    assert noise.mean().item() == pytest.approx(NOISE_MEAN, abs=0.01)
    assert noise.std().item() == pytest.approx(NOISE_STD, abs=0.01)


@pytest.mark.parametrize("noise", [False, True])
def test_a_client_without_a_class_starts_from_no_image(noise: bool) -> None:
    assert data(5).start(3, 2, stream(), noise=noise).shape == (0, 1, 1, len(LABELS))


@pytest.mark.parametrize("per_class", [1, 2, 3, 4, 9])
def test_a_batch_repeats_no_sample_more_often_than_another_of_its_class(per_class: int) -> None:
    batch = data().batch(per_class, stream())
    assert len(batch) == 3 * per_class
    for c, taken in zip((0, 2, 4), shown(batch, per_class), strict=True):
        own = taken[c == LABELS]
        assert own.sum() == per_class
        assert own.max() - own.min() <= 1
        assert taken[c != LABELS].sum() == 0


def test_draws_follow_from_the_stream_and_go_on_with_it() -> None:
    own = stream(3)
    first, second = (data().batch(2, own) for _ in range(2))
    assert torch.equal(first, data().batch(2, stream(3)))
    assert not torch.equal(first, second)
    one, other = (data().start(4, 2, stream(seed), noise=False) for seed in (3, 4))
    assert torch.equal(one, data().start(4, 2, stream(3), noise=False))
    assert not torch.equal(one, other)
