"""FedMHO's generators: CVAE-small in its three forms, its code's wider one, and CVAE-large.

The paper gives no layers (WWW'26, Table 2 has only FLOPs); these are the released code's.
"""

from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from fl.models.common import ImageShape, ModelInfo, divisible, paper_form, scaled
from fl.models.cvae import CVAE, ConvEncoder, Decoder, Encoder

HIDDEN = 256


class DenseEncoder(Encoder):
    """The encoder for MNIST: pixels and label go together through one hidden layer."""

    def __init__(self, pixels: int, num_classes: int, hidden: int, latent: int) -> None:
        super().__init__(hidden, latent)
        self.layers = nn.Sequential(nn.Linear(pixels + num_classes, hidden), nn.ReLU())

    def hidden(self, images: Tensor, onehot: Tensor) -> Tensor:
        """See `Encoder.hidden`."""
        return self.layers(torch.cat([images.flatten(1), onehot], dim=1))


def cvae_small(image_shape: ImageShape, num_classes: int, latent: int, width: float) -> CVAE:
    """The form that suits the images: fully connected for MNIST, else convolutional."""
    form = paper_form(image_shape, num_classes)
    if form == "mnist":
        return _dense_cvae(image_shape, num_classes, latent, width)
    channels = (8, 16) if form == "emnist" else (8, 16, 32)
    return _conv_cvae(image_shape, num_classes, latent, width, channels, label_size=num_classes)


def cvae_cifar(image_shape: ImageShape, num_classes: int, latent: int, width: float) -> CVAE:
    """The wider convolutional form, whose encoder does not see the label."""
    return _conv_cvae(image_shape, num_classes, latent, width, (64, 128, 256), label_size=0)


def _dense_cvae(image_shape: ImageShape, num_classes: int, latent: int, width: float) -> CVAE:
    pixels, hidden = prod(image_shape), scaled(HIDDEN, width)
    layers = nn.Sequential(
        nn.Linear(latent + num_classes, hidden),
        nn.ReLU(),
        nn.Linear(hidden, pixels),
        nn.Unflatten(1, image_shape),
    )
    encoder = DenseEncoder(pixels, num_classes, hidden, latent)
    return CVAE(encoder, Decoder(layers, latent, num_classes), image_shape)


def _conv_cvae(
    image_shape: ImageShape,
    num_classes: int,
    latent: int,
    width: float,
    channels: tuple[int, ...],
    label_size: int,
) -> CVAE:
    """4x4 convolutions of stride 2, mirrored by transposed ones in the decoder."""
    stack = [image_shape[0], *(scaled(c, width) for c in channels)]
    hidden = scaled(HIDDEN, width)
    shrink = 2 ** len(channels)
    smallest = (stack[-1], image_shape[1] // shrink, image_shape[2] // shrink)
    features = nn.Sequential(
        *_strided(nn.Conv2d, stack), nn.Flatten(), nn.Linear(prod(smallest), hidden), nn.ReLU()
    )
    layers = nn.Sequential(
        nn.Linear(latent + num_classes, hidden),
        nn.ReLU(),
        nn.Linear(hidden, prod(smallest)),
        nn.ReLU(),
        nn.Unflatten(1, smallest),
        *_strided(nn.ConvTranspose2d, stack[::-1])[:-1],  # the last layer gives logits
    )
    encoder = ConvEncoder(features, hidden, label_size, latent)
    return CVAE(encoder, Decoder(layers, latent, num_classes), image_shape)


def _strided(
    kind: type[nn.Conv2d] | type[nn.ConvTranspose2d], channels: list[int]
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [kind(inputs, outputs, 4, stride=2, padding=1), nn.ReLU()]
    return layers


def cvae_large(image_shape: ImageShape, num_classes: int, latent: int, width: float) -> CVAE:
    """3x3 convolutions with two poolings; the decoder undoes each with a bilinear enlargement."""
    c1, c2, c3, hidden = (scaled(units, width) for units in (64, 128, 256, 256))
    smallest = (c3, image_shape[1] // 4, image_shape[2] // 4)
    features = nn.Sequential(
        nn.Conv2d(image_shape[0], c1, 3, padding=1), nn.ReLU(),
        nn.Conv2d(c1, c2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(c2, c3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(prod(smallest), hidden), nn.ReLU(),
    )  # fmt: skip
    layers = nn.Sequential(
        nn.Linear(latent + num_classes, hidden), nn.ReLU(),
        nn.Linear(hidden, prod(smallest)), nn.ReLU(), nn.Unflatten(1, smallest),
        nn.ConvTranspose2d(c3, c2, 3, padding=1), nn.ReLU(), _enlarge(),
        nn.ConvTranspose2d(c2, c1, 3, padding=1), nn.ReLU(), _enlarge(),
        nn.ConvTranspose2d(c1, image_shape[0], 3, padding=1),
    )  # fmt: skip
    encoder = ConvEncoder(features, hidden, num_classes, latent)
    return CVAE(encoder, Decoder(layers, latent, num_classes), image_shape)


def _enlarge() -> nn.Upsample:
    return nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)


MODELS = (
    ModelInfo(
        "cvae-large", "generator", cvae_large, lambda s: divisible(s, 4), "sides divisible by 4"
    ),
    ModelInfo(
        *("cvae-small", "generator", cvae_small),
        lambda shape: divisible(shape, 4 if shape[0] == 1 else 8),
        "sides divisible by 4 (gray) or 8 (color)",
    ),
    ModelInfo(
        *("cvae-cifar", "generator", cvae_cifar),
        lambda shape: shape[0] == 3 and divisible(shape, 8),
        "color images with sides divisible by 8",
    ),
)
