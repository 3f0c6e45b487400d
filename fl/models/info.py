"""The registry's record of a model; each architecture's file ends with its entry."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fl.models.shapes import ImageShape


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
