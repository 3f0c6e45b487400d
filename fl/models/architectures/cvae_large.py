"""CVAE-large, FedMHO's large generator (WWW'26, Table 2; layers as in the released code)."""

from math import prod

from torch import nn

from fl.models.cvae import CVAE, ConvEncoder, Decoder
from fl.models.shapes import ImageShape, ModelInfo, divisible, scaled


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


MODEL = ModelInfo(
    "cvae-large",
    "generator",
    cvae_large,
    lambda shape: divisible(shape, 4),
    "sides divisible by 4",
    "3x3 convolutions and bilinear enlargement: FedMHO's large generator",
)
