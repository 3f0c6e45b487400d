"""Image shapes: the paper's three forms of the small models, and scaling by width."""

from typing import Literal

ImageShape = tuple[int, int, int]
"""(channels, height, width) of one image."""

Form = Literal["mnist", "emnist", "svhn"]


def paper_form(image_shape: ImageShape, num_classes: int) -> Form:
    """Which of the FedMHO paper's three small models suits these images.

    The paper has one per data set (WWW'26, Table 2): MNIST and FMNIST share the first, EMNIST has
    the second, SVHN the third. Gray images that are not MNIST's size take EMNIST's, whose padded
    convolutions fit any size.
    """
    if image_shape[0] > 1:
        return "svhn"
    return "mnist" if image_shape == (1, 28, 28) and num_classes <= 10 else "emnist"


def scaled(units: int, width: float) -> int:
    """`units` channels or hidden units at a width multiplier: rounded, never below one."""
    return max(1, round(units * width))
