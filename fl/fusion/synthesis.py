"""Synthetic samples from the clients' decoders (Section 4.2.2)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from fl.errors import UserError
from fl.models.architectures.cvaes import Decoder, sample
from fl.seeding import torch_generator
from kernels.exact import rounded, unit_for

# How many synthetic samples each decoder makes of each class (Section 4.2.2).


def squared_counts(label_counts: np.ndarray, total: int) -> np.ndarray:
    """The released code's rule: equal classes, shared by squared label counts.

    Each class gets ``q = floor(total / classes)`` samples, of which decoder k makes
    ``floor(q n_kc^2 / sum_j n_jc^2)``: the decoder that saw a class most often draws it best. A
    class that no generator client has gets none (the released code splits it evenly, which
    mislabels).

    Args:
        label_counts: (decoders, classes) int64, the label counts the clients uploaded.
        total: number of synthetic samples wanted, N_s.

    Returns:
        (decoders, classes) int64.
    """
    quota = total // label_counts.shape[1]
    squares = label_counts.astype(np.int64) ** 2
    class_sums = squares.sum(axis=0)
    return np.where(class_sums > 0, quota * squares // np.maximum(class_sums, 1), 0)


def label_share_of(counts: np.ndarray, total: int, position: int, decoders: int) -> np.ndarray:
    """The row of :func:`label_share` of one decoder of so many, which needs its counts alone.

    Args:
        counts: (classes,) int64, its client's label counts.
        total: number of synthetic samples wanted of all decoders.
        position: of the decoder among them, from 0.
        decoders: how many there are.

    Returns:
        (classes,) int64.
    """
    return _apportioned(counts, total // decoders + (position < total % decoders))


def label_share(label_counts: np.ndarray, total: int) -> np.ndarray:
    """The paper's rule: every decoder samples by its own label distribution p_k.

    The paper leaves the total of a decoder open; here all make ``total / decoders`` (the first
    ones one more where it does not divide). Shares are rounded by largest remainder, so that each
    decoder's row sums to its total. Arguments and result as :func:`squared_counts`.
    """
    decoders = len(label_counts)
    rows = [label_share_of(own, total, k, decoders) for k, own in enumerate(label_counts)]
    return np.stack(rows)


def client_shares(
    label_counts: np.ndarray, total: int, streams: Sequence[np.random.Generator]
) -> np.ndarray:
    """FEDCVAE's rule: decoder k's share of ``total`` is its client's share of all samples.

    Its labels are drawn from the client's own distribution p_k, by the client's own stream.
    Arguments and result as :func:`squared_counts`.
    """
    totals = _apportioned(label_counts.sum(axis=1), total)
    rows = [
        stream.multinomial(own, counts / counts.sum())
        for counts, own, stream in zip(label_counts, totals, streams, strict=True)
    ]
    return np.stack(rows).astype(np.int64)


def _apportioned(weights: np.ndarray, total: int) -> np.ndarray:
    """``total`` divided in proportion to ``weights``, by largest remainder."""
    exact = total * weights / weights.sum()
    row = np.floor(exact).astype(np.int64)
    # A stable sort, so that of equal remainders the lower index goes first.
    neediest = np.argsort(row - exact, kind="stable")[: total - row.sum()]
    row[neediest] += 1
    return row


BATCH = 256
"""Samples that a decoder draws at once, on any rank: other batch sizes would round differently."""
PIXEL = unit_for(1.0)
"""What pixels are whole multiples of: 2**-18, a thousandth of what 8 bits distinguish."""


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


def still_asked(
    early: Mapping[tuple[str, int], Drawn],
    clients: Iterable[int],
    allocation: np.ndarray,
    stream: str,
) -> dict[int, Drawn]:
    """By client what was drawn ``early``, by stream and client, as it is asked for now.

    ``allocation``, (clients, classes), is what is asked of each client's decoder.
    """
    rows = dict(zip(clients, allocation, strict=True))
    own = {client: drawn for (name, client), drawn in early.items() if name == stream}
    return {k: d for k, d in own.items() if k in rows and np.array_equal(d.counts, rows[k])}


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
