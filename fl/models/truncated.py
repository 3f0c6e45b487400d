"""Decoders that are asked only about the middle of the latent space."""

import torch
from torch import Tensor

from fl.models.cvae import Decoder


class TruncatedDecoder(Decoder):
    """A decoder whose z ~ N(0, I) is bent to N(0, I) truncated to [-bound, bound] in each entry.

    FEDCVAE draws its z so. The bend is the truncated distribution's quantile of z's own, so whoever
    draws needs to know nothing of it.
    """

    def __init__(self, decoder: Decoder, bound: float) -> None:
        super().__init__(decoder.layers, decoder.latent, decoder.num_classes)
        self.bound = bound

    def forward(self, z: Tensor, onehot: Tensor) -> Tensor:
        """Image logits (B, C, H, W) of z (B, latent) and labels (B, num_classes)."""
        return super().forward(truncate(z, self.bound), onehot)


def truncate(z: Tensor, bound: float) -> Tensor:
    """Turns standard normal numbers into such ones truncated to [-bound, bound], monotonously."""
    low = torch.special.ndtr(torch.tensor(-bound, dtype=torch.float64)).item()
    share = low + (1 - 2 * low) * torch.special.ndtr(z.double())
    return torch.special.ndtri(share).clamp(-bound, bound).to(z.dtype)
