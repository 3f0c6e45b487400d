"""Synthetic samples from the clients' decoders (Section 4.2.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl.errors import UserError
from fl.models import Decoder, sample
from fl.seeding import torch_generator
from kernels.exact import rounded, unit_for

BATCH = 256
"""Samples that a decoder draws at once, on any rank: other batch sizes would round differently."""
PIXEL = unit_for(1.0)
"""What pixels are whole multiples of: 2**-18, a thousandth of what 8 bits tell apart."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A batch to draw from one client's decoder."""

    client: int
    labels: Tensor
    """(B,) int64."""
    start: int
    """Position of the batch's first sample among the client's samples."""
    total: int
    """How many samples the client's decoder draws in all."""

    def __len__(self) -> int:
        return len(self.labels)


def plan_draws(clients: Sequence[int], allocation: np.ndarray) -> list[Draw]:
    """All batches, client by client, for an allocation (clients, classes)."""
    draws = []
    for client, counts in zip(clients, allocation, strict=True):
        labels = torch.repeat_interleave(torch.from_numpy(counts))
        starts = range(0, len(labels), BATCH)
        draws += [
            Draw(client=client, labels=part, start=start, total=len(labels))
            for start, part in zip(starts, labels.split(BATCH), strict=False)
        ]
    return draws


def share_out(draws: Sequence[Draw], ranks: int) -> list[list[Draw]]:
    """Divides the batches among ranks: consecutive whole batches, as evenly as possible."""
    total = sum(map(len, draws))
    shares: list[list[Draw]] = [[] for _ in range(ranks)]
    before = 0
    for draw in draws:
        shares[(2 * before + len(draw)) * ranks // (2 * total)].append(draw)
        before += len(draw)
    return shares


@torch.no_grad()
def draw_samples(
    decoders: Mapping[int, Decoder],
    draws: Sequence[Draw],
    *,
    latent: int,
    stream: tuple[int, str],
    device: torch.device,
    into: tuple[Tensor, Tensor],
) -> None:
    """Draws x ~ p_theta_k(x | z, c), z ~ N(0, I), batch by batch.

    Each decoder has a noise stream of its own, so that one client's samples do not depend on which
    others took part. Pixels are rounded to whole multiples of `PIXEL`, of which the filter's sums
    are exact.

    Args:
        decoders: decoder of each client by client id, looked up once for each client.
        draws: what to draw; a client's batches are consecutive.
        latent: size of z.
        stream: the run's seed, and the purpose that names the noise.
        device: where the samples are made.
        into: images (N, C, H, W) and z (N, latent), float32, to write to, where N is the number of
            samples of all draws; may be on another device.

    Raises:
        UserError: a decoder whose pixels are not in [0, 1].
    """
    drawing, noise, position = None, torch.empty(0), 0
    extremes: list[Tensor] = []
    for draw in draws:
        if draw.client != drawing:
            drawing, decoder = draw.client, decoders[draw.client].to(device).eval()
            own = torch_generator(*stream, draw.client)
            noise = torch.randn(draw.total, latent, generator=own)
        z = noise[draw.start : draw.start + len(draw)]
        rows = slice(position, position + len(draw))
        images = sample(decoder, draw.labels.to(device), z.to(device))
        extremes.append(torch.stack(images.aminmax()))
        into[0][rows] = rounded(images, PIXEL)
        into[1][rows] = z
        position += len(draw)
    _check(draws, extremes)


def _check(draws: Sequence[Draw], extremes: list[Tensor]) -> None:
    """Refuses pixels outside [0, 1], NaN too, after all draws: the device is waited for once."""
    found = torch.stack(extremes).tolist() if extremes else []
    for draw, (low, high) in zip(draws, found, strict=True):
        if not 0 <= low <= high <= 1:
            raise UserError(
                f"the decoder of client {draw.client} makes pixels from {low:.3g} to {high:.3g}, "
                "they must be in [0, 1]"
            )


def truncate_to_bytes(images: Tensor) -> Tensor:
    """Images as 8-bit pixels, cut off and not rounded, as the released code does for RGB."""
    return (images * 255).to(torch.uint8).float() / 255
