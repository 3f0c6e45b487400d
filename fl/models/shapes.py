"""What models share: image shapes, scaling by width, kinds of layers, the registry's records."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fl.inputs import Inputs, TakesParts

ImageShape = tuple[int, int, int]
"""(channels, height, width) of one image."""

AnyDropout = (
    nn.Dropout
    | nn.Dropout1d
    | nn.Dropout2d
    | nn.Dropout3d
    | nn.AlphaDropout
    | nn.FeatureAlphaDropout
)
AnyBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
"""A lazy layer becomes one of these with its first batch."""


def paper_form(image_shape: ImageShape, num_classes: int) -> Literal["mnist", "emnist", "svhn"]:
    """Which of the FedMHO paper's three small models suits these images.

    The paper has one per data set (WWW'26, Table 2): MNIST and FMNIST share the first, EMNIST has
    the second, SVHN the third. Gray images that are not MNIST's size take EMNIST's, whose padded
    convolutions fit any size. Ten classes and an unknown one (FedOV) are still MNIST's.
    """
    if image_shape[0] > 1:
        return "svhn"
    return "mnist" if image_shape == (1, 28, 28) and num_classes <= 11 else "emnist"


def scaled(units: int, width: float) -> int:
    """`units` channels or hidden units at a width multiplier: rounded, never below one."""
    return max(1, round(units * width))


@contextmanager
def forwards_replaced(own: Mapping[nn.Module, Callable[..., Tensor]]) -> Iterator[None]:
    """Inside the context each module computes by the function that is given for it."""
    before = {module: vars(module).get("forward") for module in own}
    try:
        for module, forward in own.items():
            module.forward = forward
        yield
    finally:
        for module, replaced in before.items():
            del module.forward
            if replaced is not None:  # by somebody else, before
                module.forward = replaced


class Flattening(nn.Module):
    """A classifier of two parts: ``features`` of the images, flattened, and ``classifier``."""

    features: nn.Module
    classifier: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


@dataclass(frozen=True)
class ModelInfo:
    """One model: its name, its builder, and the samples it takes."""

    name: str
    kind: Literal["classifier", "generator"]
    build: Callable[..., nn.Module]
    """Called with the samples' shape, classes and width; a generator's with latent before width."""
    supports: Callable[[tuple[int, ...]], bool]
    """Whether the model takes samples of this shape."""
    needs: str
    """What `supports` requires, in words."""
    source: str = ""
    """Hash of the code of a model of the user's own, on which a client's upload depends."""
    images: bool = True
    """Whether it takes images alone."""
    code: str = ""
    """Hash of that code without its loss, by which a saved model is known to be of it."""

    def takes(self, inputs: Inputs) -> bool:
        """Whether it takes such samples."""
        if inputs.parts:
            return bool(self.source)
        return (inputs.is_image or not self.images) and self.supports(inputs.shape)

    def made(self, inputs: Inputs, num_classes: int, width: float) -> nn.Module:
        """A classifier for such samples."""
        model = self.build(inputs.shape_for_model, num_classes, width)
        if inputs.parts:
            model.register_forward_pre_hook(TakesParts(inputs))
        return model


@dataclass(frozen=True)
class Built:
    """What a classifier was built of; the module has it as ``built_as``."""

    model: str
    inputs: Inputs
    num_classes: int
    width: float


def at_least(side: int, name: str, build: Callable[..., nn.Module]) -> ModelInfo:
    """The record of a classifier of images whose sides have so many pixels."""
    needs = f"sides of at least {side}"
    return ModelInfo(name, "classifier", build, lambda shape: min(shape[1:]) >= side, needs)


def divisible(image_shape: tuple[int, ...], factor: int) -> bool:
    """Whether both sides are multiples of the factor."""
    return all(side % factor == 0 for side in image_shape[1:])
