"""Conditional VAEs: encoder, decoder, loss, sampling from the decoder; and FedMHO's generators.

CVAE-small has three forms; beside it are the code's wider one and CVAE-large. The paper gives no
layers (WWW'26, Table 2 has only FLOPs); these are the released code's.
"""

from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.models.common import ImageShape, ModelInfo, divisible, paper_form, scaled

# At the paper's learning rate of 5e-2 Adam's first steps throw logvar to -50 (seen on MNIST). As
# far on the other side exp(logvar) swamps the loss, and in float16 it overflows from 11.1 on.
LOGVAR_BOUND = 10.0


class Encoder(nn.Module):
    """q(z|x, c). A subclass defines how image and label become the hidden vector."""

    def __init__(self, hidden_size: int, latent: int) -> None:
        super().__init__()
        self.mu = nn.Linear(hidden_size, latent)
        self.logvar = nn.Linear(hidden_size, latent)

    def hidden(self, images: Tensor, onehot: Tensor) -> Tensor:
        """The hidden vector (B, hidden_size) of images (B, C, H, W) and labels (B, num_classes)."""
        raise NotImplementedError

    def forward(self, images: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor]:
        """(mu, logvar), each (B, latent), of images (B, C, H, W) and labels (B, num_classes)."""
        hidden = self.hidden(images, onehot)
        logvar = self.logvar(hidden).clamp(-LOGVAR_BOUND, LOGVAR_BOUND)
        return self.mu(hidden), logvar


class ConvEncoder(Encoder):
    """Convolutions and a fully connected layer; the label is appended to their output or unused."""

    def __init__(self, features: nn.Module, hidden: int, label_size: int, latent: int) -> None:
        super().__init__(hidden + label_size, latent)
        self.features = features
        self.sees_label = label_size > 0

    def hidden(self, images: Tensor, onehot: Tensor) -> Tensor:
        """See `Encoder.hidden`."""
        features = self.features(images)
        return torch.cat([features, onehot], dim=1) if self.sees_label else features


class Decoder(nn.Module):
    """p(x|z, c), which a client uploads and the server samples from.

    `layers` maps [z, one-hot label] (B, latent + num_classes) to image logits (B, C, H, W).
    """

    def __init__(self, layers: nn.Module, latent: int, num_classes: int) -> None:
        super().__init__()
        self.layers = layers
        self.latent = latent
        self.num_classes = num_classes

    def forward(self, z: Tensor, onehot: Tensor) -> Tensor:
        """Image logits (B, C, H, W) of z (B, latent) and labels (B, num_classes)."""
        return self.layers(torch.cat([z, onehot], dim=1))


class CVAE(nn.Module):
    """A conditional VAE, of an encoder and a decoder built for the same images and classes."""

    def __init__(self, encoder: Encoder, decoder: Decoder, image_shape: ImageShape) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.image_shape = image_shape
        self.latent = decoder.latent
        self.num_classes = decoder.num_classes

    def forward(
        self, images: Tensor, labels: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(image logits (B, C, H, W), mu (B, latent), logvar (B, latent)).

        Takes images (B, C, H, W) in [0, 1], integer labels (B,), and noise (B, latent) drawn from
        N(0, I) by the caller, so that the caller controls the randomness.
        """
        onehot = one_hot(labels, self.num_classes, images.dtype)
        mu, logvar = self.encoder(images, onehot)
        z = mu + torch.exp(logvar / 2) * noise
        return self.decoder(z, onehot), mu, logvar


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Integer labels (B,) as one-hot rows (B, num_classes)."""
    # Not F.one_hot, which reads the labels back to the host: it stalls a GPU, and vmap forbids it.
    classes = torch.arange(num_classes, device=labels.device)
    return (labels.unsqueeze(-1) == classes).to(dtype)


def elbo_losses(image_logits: Tensor, images: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    """FedMHO's Eq. 3 of each sample, (B,): reconstruction BCE plus KL(q(z|x, c) || N(0, I)).

    Takes image logits and images (B, C, H, W), mu and logvar (B, latent). Both terms are summed
    over pixels and latent dimensions.
    """
    # Binary cross-entropy, not torch's own: its gradient has a sigmoid, which rounds differently at
    # the end of a tensor, so that a sample's gradient would depend on the number of others.
    bce = (1 - images) * image_logits - F.logsigmoid(image_logits)
    kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1)
    return bce.flatten(1).sum(1) + kl


@torch.no_grad()
def sample(decoder: Decoder, labels: Tensor, noise: Tensor) -> Tensor:
    """Images (B, C, H, W) in [0, 1] of integer labels (B,) and z = noise (B, latent) ~ N(0, I)."""
    return torch.sigmoid(decoder(noise, one_hot(labels, decoder.num_classes, noise.dtype)))


# Decoders that draw z from a truncated normal distribution, as FEDCVAE does.


class TruncatedDecoder(Decoder):
    """A decoder whose z ~ N(0, I) is mapped to N(0, I) truncated to [-bound, bound] in each entry.

    The mapping is by quantiles, so that the caller draws z from N(0, I) as for any decoder.
    """

    def __init__(self, decoder: Decoder, bound: float) -> None:
        super().__init__(decoder.layers, decoder.latent, decoder.num_classes)
        self.bound = bound

    def forward(self, z: Tensor, onehot: Tensor) -> Tensor:
        """Image logits (B, C, H, W) of z (B, latent) and labels (B, num_classes)."""
        return super().forward(truncate(z, self.bound), onehot)


def truncate(z: Tensor, bound: float) -> Tensor:
    """Maps standard normal numbers monotonously to ones truncated to [-bound, bound]."""
    low = torch.special.ndtr(torch.tensor(-bound, dtype=torch.float64)).item()
    share = low + (1 - 2 * low) * torch.special.ndtr(z.double())
    return torch.special.ndtri(share).clamp(-bound, bound).to(z.dtype)


# FedMHO's generators.

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
