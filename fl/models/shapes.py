"""Image shapes: the paper's three forms of the small models, and scaling by width."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

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


# The registry's record of a model; each architecture's file ends with its entry.


@dataclass(frozen=True)
class ModelInfo:
    """One model: its name, its builder, and the images it takes."""

    name: str
    kind: Literal["classifier", "generator"]
    build: Callable[..., nn.Module]
    """Called with image shape, classes and width; a generator's with latent before width."""
    supports: Callable[[ImageShape], bool]
    """Whether the model takes gray or color images of this shape."""
    needs: str
    """What `supports` requires, in words."""
    summary: str
    source: str = ""
    """Hash of the code of a model of the user's own, on which a client's upload depends."""


@dataclass(frozen=True)
class Built:
    """What a classifier was built of; the module has it as ``built_as``."""

    model: str
    image_shape: ImageShape
    num_classes: int
    width: float


def at_least_8(image_shape: ImageShape) -> bool:
    """Whether both sides have 8 pixels."""
    return min(image_shape[1:]) >= 8


def divisible(image_shape: ImageShape, factor: int) -> bool:
    """Whether both sides are multiples of the factor."""
    return all(side % factor == 0 for side in image_shape[1:])
