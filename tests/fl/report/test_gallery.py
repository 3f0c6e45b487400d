"""Example images: spread over what there is, before and after the filter."""

import numpy as np
import torch

from fl.data.datasets import Split
from fl.exchange import Tensors
from fl.report.gallery import gallery

CLASSES = 4


def numbered(count: int) -> np.ndarray:
    """Images that are their own number, from 1."""
    return np.arange(1, count + 1, dtype=np.uint8)[:, None, None, None].repeat(2, 2).repeat(2, 3)


def real() -> Split:
    """Twelve images of class 0, two of class 1, none of class 2, one of class 3."""
    return Split(numbered(15), np.repeat([0, 1, 3], [12, 2, 1]))


def synthetic(labels: list[int], kept: list[int]) -> Tensors:
    images = torch.tensor(numbered(len(labels))).float() / 255
    return {"images": images, "labels": torch.tensor(labels), "kept": torch.tensor(kept)}


def numbers(images: torch.Tensor) -> list[list[int]]:
    """Per class, which images are shown."""
    assert (images == images[:, :, :, :1, :1]).all()
    return images[:, :, 0, 0, 0].tolist()


def test_images_are_spread_from_the_first_of_a_class_to_its_last() -> None:
    pictures = gallery(synthetic([0] * 9 + [2], list(range(10))), CLASSES, real(), per_class=3)
    assert pictures["real_images"].shape == (CLASSES, 3, 1, 2, 2)
    assert pictures["real_images"].dtype == torch.uint8
    assert numbers(pictures["real_images"]) == [[1, 6, 12], [13, 14, 0], [0, 0, 0], [15, 0, 0]]
    assert numbers(pictures["before"]) == [[1, 5, 9], [0, 0, 0], [10, 0, 0], [0, 0, 0]]


def test_after_the_filter_only_kept_samples_are_shown() -> None:
    pictures = gallery(synthetic([1, 0, 1, 0, 1, 3], [1, 2, 4]), CLASSES, per_class=2)
    assert numbers(pictures["before"]) == [[2, 4], [1, 5], [0, 0], [6, 0]]
    assert numbers(pictures["after"]) == [[2, 0], [3, 5], [0, 0], [0, 0]]


def test_real_images_are_shown_only_where_they_are_given() -> None:
    assert gallery(synthetic([1, 3, 3], [0]), CLASSES).keys() == {"before", "after"}


def test_pixels_are_rounded_to_bytes() -> None:
    samples = synthetic([0, 0, 0], [0])
    values = torch.tensor([0.0, 100.4, 100.6]) / 255
    samples["images"] = values.view(3, 1, 1, 1).expand(3, 1, 2, 2)
    assert numbers(gallery(samples, CLASSES, per_class=3)["before"])[0] == [0, 100, 101]


def test_eight_different_images_of_a_class_are_shown_where_there_are_as_many() -> None:
    for count in range(8, 40):
        shown = numbers(gallery(synthetic([1] * count, [0]), CLASSES)["before"])[1]
        assert len(set(shown)) == 8
        assert (shown[0], shown[-1]) == (1, count)
