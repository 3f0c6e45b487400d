"""Synthetic samples from the clients' decoders (Section 4.2.2)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl.models import Decoder, sample
from fl.seeding import torch_generator


@dataclass(frozen=True)
class Synthetic:
    """Labelled samples on one device: images (N, C, H, W) in [0, 1], labels (N,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> "Synthetic":
        """The samples at ``indices``, in that order."""
        return Synthetic(self.images[indices], self.labels[indices])


@torch.no_grad()
def sample_decoders(
    decoders: Mapping[int, Decoder] | Iterable[tuple[int, Decoder]],
    allocation: np.ndarray,
    *,
    latent: int,
    seed: int,
    device: torch.device,
    batch_size: int = 1024,
) -> Synthetic:
    """Draws x ~ p_theta_k(x | z, c), z ~ N(0, I), as often as the allocation says.

    Each decoder has a noise stream of its own, so that one client's samples do not depend on who
    else took part.

    Args:
        decoders: decoder of each generator client by client id, in the allocation's row order;
            pairs from a generator are held one at a time.
        allocation: (decoders, classes) number of samples.
        latent: size of z.
        seed: the run's seed.
        device: where the samples are made and stay.
        batch_size: samples per forward pass.
    """
    images, labels = [], []
    pairs = decoders.items() if isinstance(decoders, Mapping) else decoders
    for (client, decoder), counts in zip(pairs, allocation, strict=True):
        decoder.to(device).eval()
        own_labels = torch.repeat_interleave(torch.from_numpy(counts))
        stream = torch_generator(seed, "synthesis", client)
        noise = torch.randn(len(own_labels), latent, generator=stream)
        for label, z in zip(own_labels.split(batch_size), noise.split(batch_size), strict=True):
            images.append(sample(decoder, label.to(device), z.to(device)))
        labels.append(own_labels)
    return Synthetic(torch.cat(images), torch.cat(labels).to(device))


def truncate_to_bytes(images: Tensor) -> Tensor:
    """Images as 8-bit pixels, cut off and not rounded, as the released code does for RGB."""
    return (images * 255).to(torch.uint8).float() / 255
