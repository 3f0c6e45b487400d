"""The conditional VAE: encoder, decoder, loss, and sampling from the decoder (FedMHO, WWW'26)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.models.common import ImageShape

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
