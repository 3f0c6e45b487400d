"""The generators that servers train: FedGen's of features, and DENSE's of images.

Both are initialised from torch's global stream.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fl.errors import UserError
from fl.models.common import ImageShape, divisible, scaled

NOISE = 32
"""Dimensions of the noise, uniform in [0, 1)."""
HIDDEN = 256


class FeatureGenerator(nn.Module):
    """FedGen's (Zhu et al., ICML 2021): features (B, d) of a class, as its classifiers make them.

    It takes noise and a one-hot class, (B, NOISE + classes), and has one hidden layer.
    """

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layers = nn.Sequential(
            nn.Linear(NOISE + num_classes, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, features),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, d) of what :func:`asked` made."""
        return self.layers(x)


def asked(labels: Tensor, num_classes: int, stream: torch.Generator) -> Tensor:
    """What a generator takes for these classes, (B, NOISE + classes), with fresh noise."""
    noise = torch.rand(len(labels), NOISE, generator=stream)
    return torch.cat([noise, one_hot(labels, num_classes).float()], dim=1)


DEVIATION = 0.02  # of initial weights, as is usual for GANs


class ImageGenerator(nn.Module):
    """DENSE's and Co-Boosting's (Zhang et al., NeurIPS 2022): images (B, C, H, W) in [0, 1] of z.

    z is (B, latent), without class labels. A fully connected layer makes a quarter-size map of 128
    channels, which two nearest-neighbour enlargements with 3x3 convolutions (128 and 64 channels)
    bring to the image's size. ``width`` multiplies channels; 1 is the released code's.

    Raises:
        UserError: a side of the images is not divisible by 4.
    """

    def __init__(self, image_shape: ImageShape, latent: int = 256, width: float = 1.0) -> None:
        super().__init__()
        check_image_generator(image_shape)
        channels, height, image_width = image_shape
        wide, narrow = scaled(128, width), scaled(64, width)
        smallest = (wide, height // 4, image_width // 4)
        self.layers = nn.Sequential(
            nn.Linear(latent, wide * smallest[1] * smallest[2]),
            nn.Unflatten(1, smallest),
            nn.BatchNorm2d(wide),
            *_enlarge(wide, wide),
            *_enlarge(wide, narrow),
            nn.Conv2d(narrow, channels, 3, padding=1),
            nn.Sigmoid(),
        )
        self.apply(_start)

    def forward(self, z: Tensor) -> Tensor:
        """Images (B, C, H, W) of z (B, latent)."""
        return self.layers(z)


def check_image_generator(image_shape: ImageShape) -> None:
    """Raises `UserError` if there is no generator for images of this shape."""
    if not divisible(image_shape, 4):
        raise UserError(f"the image generator needs sides divisible by 4, got {image_shape}")


def _enlarge(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return (
        nn.Upsample(scale_factor=2),
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.2),
    )


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, 0.0, DEVIATION)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, DEVIATION)
