"""Synthetic samples from the clients' decoders (Section 4.2.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

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


@dataclass(frozen=True)
class Drawn:
    """What one client's decoder has drawn."""

    counts: np.ndarray
    """Of each class, (classes,) int64."""
    images: Tensor
    """(n, C, H, W)."""
    z: Tensor
    """(n, latent)."""


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


def portions(draws: Sequence[Draw], clients: int) -> list[list[Draw]]:
    """The batches in order, cut wherever more than so many clients would be in a portion."""
    cut: list[list[Draw]] = [[]]
    for number, (_, own) in enumerate(groupby(draws, lambda draw: draw.client)):
        if number and number % clients == 0:
            cut.append([])
        cut[-1] += own
    return cut


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
    drawn: Mapping[int, Drawn],
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
        drawn: what was drawn before by client, by the same arguments: it is taken as it is.

    Raises:
        UserError: a decoder whose pixels are not in [0, 1].
    """
    drawing, noise, position = None, torch.empty(0), 0
    clients, extremes = list[int](), list[Tensor]()
    for draw in draws:
        rows = slice(position, position + len(draw))
        position += len(draw)
        if before := drawn.get(draw.client):
            own_rows = slice(draw.start, draw.start + len(draw))
            into[0][rows], into[1][rows] = before.images[own_rows], before.z[own_rows]
            continue
        if draw.client != drawing:
            drawing, decoder = draw.client, decoders[draw.client].to(device).eval()
            own = torch_generator(*stream, draw.client)
            noise = torch.randn(draw.total, latent, generator=own)
        z = noise[draw.start : draw.start + len(draw)]
        images = sample(decoder, draw.labels.to(device), z.to(device))
        clients.append(draw.client)
        extremes.append(torch.stack(images.aminmax()))
        into[0][rows] = rounded(images, PIXEL)
        into[1][rows] = z
    _check(clients, extremes)


def _check(clients: Sequence[int], extremes: list[Tensor]) -> None:
    """Refuses pixels outside [0, 1], NaN too, after all draws: the device is waited for once."""
    found = torch.stack(extremes).tolist() if extremes else []
    for client, (low, high) in zip(clients, found, strict=True):
        if not 0 <= low <= high <= 1:
            raise UserError(
                f"the decoder of client {client} makes pixels from {low:.3g} to {high:.3g}, "
                "they must be in [0, 1]"
            )


def truncate_to_bytes(images: Tensor) -> Tensor:
    """Images as 8-bit pixels, cut off and not rounded, as the released code does for RGB."""
    return (images * 255).to(torch.uint8).float() / 255
