"""The models by name: what each supports, and how to build it.

Their sizes against the FedMHO paper's Table 2 are in docs/models.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from torch import nn

from fl.errors import UserError, unknown
from fl.models.cnn import CNN
from fl.models.convnet import ConvNet
from fl.models.cvae import CVAE, Decoder
from fl.models.cvae_large import cvae_large
from fl.models.cvae_small import cvae_cifar, cvae_small
from fl.models.resnet import ResNet18
from fl.models.shapes import ImageShape
from fl.models.vgg import VGG9


@dataclass(frozen=True)
class ModelInfo:
    """One model: its name, its builder, and the images it takes."""

    name: str
    kind: Literal["classifier", "generator"]
    build: Callable[..., Any]
    supports: Callable[[ImageShape], bool]
    """Whether the model takes gray or color images of this shape."""
    needs: str
    """What `supports` asks for, in words."""
    summary: str


def _deep(name: str) -> Callable[..., nn.Module]:
    def build(*arguments: Any) -> nn.Module:
        # torchvision and all that it imports take a second and a half, which few processes need.
        from fl.models import deep

        model: nn.Module = getattr(deep, name)(*arguments)
        return model

    return build


def _at_least_8(image_shape: ImageShape) -> bool:
    return min(image_shape[1:]) >= 8


def _more_than_16(image_shape: ImageShape) -> bool:
    """Four strides of 2 leave two pixels, so that BatchNorm takes a batch of one image."""
    return min(image_shape[1:]) > 16


def _divisible(image_shape: ImageShape, factor: int) -> bool:
    return all(side % factor == 0 for side in image_shape[1:])


MODELS = {
    info.name: info
    for info in (
        ModelInfo(
            "vgg9",
            "classifier",
            VGG9,
            _at_least_8,
            "sides of at least 8",
            "VGG-9 without batch normalisation: FedMHO's large classifier",
        ),
        ModelInfo(
            "cnn",
            "classifier",
            CNN,
            _at_least_8,
            "sides of at least 8",
            "two to five convolutions, by data set: FedMHO's small classifier",
        ),
        *(
            ModelInfo(
                name,
                "classifier",
                _deep(builder),
                _more_than_16,
                "sides above 16",
                text,
            )
            for name, builder, text in (
                ("efficientnet-v2", "efficientnet_v2", "EfficientNetV2-S: Table 9's global model"),
                ("resnet50", "ResNet50", "ResNet-50: a large classifier of Table 9"),
                ("mobilenet-v2", "mobilenet_v2", "MobileNetV2: a large classifier of Table 9"),
            )
        ),
        ModelInfo(
            "convnet",
            "classifier",
            ConvNet,
            _at_least_8,
            "sides of at least 8",
            "three convolutions with BatchNorm and average pooling: FedDM's and FedAF's classifier",
        ),
        ModelInfo(
            "resnet18",
            "classifier",
            ResNet18,
            _at_least_8,
            "sides of at least 8",
            "ResNet-18 with the 7x7 stem, FedAF's larger classifier",
        ),
        ModelInfo(
            "cvae-small",
            "generator",
            cvae_small,
            lambda shape: _divisible(shape, 4 if shape[0] == 1 else 8),
            "sides divisible by 4 (gray) or 8 (color)",
            "fully connected or strided convolutions, by data set: FedMHO's small generator",
        ),
        ModelInfo(
            "cvae-large",
            "generator",
            cvae_large,
            lambda shape: _divisible(shape, 4),
            "sides divisible by 4",
            "3x3 convolutions and bilinear enlargement: FedMHO's large generator",
        ),
        ModelInfo(
            "cvae-cifar",
            "generator",
            cvae_cifar,
            lambda shape: shape[0] == 3 and _divisible(shape, 8),
            "color images with sides divisible by 8",
            "a wider cvae-small with a label-free encoder, from FedMHO's code for CIFAR-10",
        ),
    )
}
CLASSIFIERS = tuple(name for name, info in MODELS.items() if info.kind == "classifier")
GENERATORS = tuple(name for name, info in MODELS.items() if info.kind == "generator")


def build_classifier(
    name: str, image_shape: ImageShape, num_classes: int, *, width: float = 1.0
) -> nn.Module:
    """A classifier from images (B, C, H, W) in [0, 1] to logits (B, num_classes).

    `width` multiplies channels and hidden units; 1 is the paper's. Initialised from torch's global
    stream. Raises `UserError` as `check_classifier`.
    """
    check_classifier(name, image_shape, num_classes, width=width)
    return MODELS[name].build(image_shape, num_classes, width)


def build_generator(
    name: str, image_shape: ImageShape, num_classes: int, *, latent: int = 20, width: float = 1.0
) -> CVAE:
    """A conditional VAE for images (C, H, W) and num_classes labels, with `latent` dimensions.

    `width` multiplies channels and hidden units; 1 is the paper's. Initialised from torch's global
    stream. Raises `UserError` as `check_generator`.
    """
    check_generator(name, image_shape, num_classes, latent=latent, width=width)
    return MODELS[name].build(image_shape, num_classes, latent, width)


def build_decoder(
    name: str, image_shape: ImageShape, num_classes: int, *, latent: int = 20, width: float = 1.0
) -> Decoder:
    """The decoder alone of `build_generator`'s model: what a server loads an upload into."""
    return build_generator(name, image_shape, num_classes, latent=latent, width=width).decoder


def check_classifier(
    name: str, image_shape: ImageShape, num_classes: int, *, width: float = 1.0
) -> None:
    """Raises `UserError` if `build_classifier` cannot build this; builds nothing."""
    _check(name, CLASSIFIERS, image_shape, num_classes, width)


def check_generator(
    name: str, image_shape: ImageShape, num_classes: int, *, latent: int = 20, width: float = 1.0
) -> None:
    """Raises `UserError` if `build_generator` cannot build this; builds nothing."""
    _check(name, GENERATORS, image_shape, num_classes, width)
    if latent < 1:
        raise UserError(f"latent is {latent}; it must be at least 1")


def _check(
    name: str, names: tuple[str, ...], image_shape: ImageShape, num_classes: int, width: float
) -> None:
    if name not in names:
        raise unknown("classifier" if names is CLASSIFIERS else "generator", name, names)
    info = MODELS[name]
    if image_shape[0] not in (1, 3) or min(image_shape) < 1 or not info.supports(image_shape):
        raise UserError(
            f"{name} does not take images of shape {image_shape}; "
            f"it needs 1 or 3 channels and {info.needs}"
        )
    if num_classes < 1:
        raise UserError(f"num_classes is {num_classes}; it must be at least 1")
    if not 0 < width < inf:
        raise UserError(f"width is {width}; it must be a positive number")
