"""Decoders that draw z from a truncated normal distribution, as FEDCVAE does."""

import torch
from torch import Tensor

from fl.models.cvae import Decoder


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
