"""What lies between the products of a fully connected CVAE's gradient, as few operations.

On a GPU a launch takes longer than the arithmetic of a small model's step. So what is done element
by element between two products of matrices is one operation of torch's dispatcher: one Triton
kernel on CUDA (kernels/triton_cvae.py), and elsewhere the twin below, in torch. The products and
the formula are in :mod:`fl.training.dense_cvae`.

Rows are (B, n), or (S, B, n) where the models of S clients are stacked.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernels.backends import resolve

Twin = TypeVar("Twin", bound=Callable[..., object])
_LIBRARY = torch.library.Library("onefold", "DEF")

fused: Any = torch.ops.onefold
"""The functions below by their names, each as one operation."""
FACTORS = 120
"""So many numbers of 1/2 and more have a product that float32 holds with all of its digits."""


def _fused(*changed: str) -> Callable[[Twin], Twin]:
    """Makes an operation of a function, which is its twin; ``changed``: tensors it writes to."""

    def registered(twin: Twin) -> Twin:
        name = twin.__name__

        def work(first: Tensor, *others: object) -> object:
            if resolve("auto", first.device) == "triton":
                from kernels import triton_cvae  # imports triton

                return getattr(triton_cvae, name)(first, *others)
            return twin(first, *others)

        _LIBRARY.define(name + torch.library.infer_schema(twin, mutates_args=changed))
        _LIBRARY.impl(name, work, "CompositeExplicitAutograd")
        return twin

    return registered


@_fused()
def take(
    images: Tensor,
    labels: Tensor,
    order: Tensor,
    noise: Tensor,
    shares: Tensor,
    now: Tensor,
    classes: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The step at a counter: its rows as of :func:`labelled`, its noise and its shares.

    Args:
        images: (N, pixels) of all clients.
        labels: (N,) int64.
        order: (T, S, B) int64, the rows of T steps.
        noise: (T, S, B, latent).
        shares: (T, S, B).
        now: (1,) int64, the step's number from 0.
        classes: length of a one-hot vector.
    """
    rows, drawn, own = (t.index_select(0, now).squeeze(0) for t in (order, noise, shares))
    own_images, own_labels = (t.index_select(0, rows.flatten()) for t in (images, labels))
    return labelled(own_images, own_labels, classes).unflatten(0, rows.shape), drawn, own


def labelled(images: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Pixels (..., B, pixels), each row with its label (..., B) behind it as a one-hot vector."""
    every = torch.arange(classes, device=labels.device)
    return torch.cat([images, (labels.unsqueeze(-1) == every).to(images.dtype)], -1)


@_fused("heads")
def reparameterise(
    heads: Tensor, noise: Tensor, onehot: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    """z = mu + exp(logvar / 2) noise, and its KL(q(z|x, c) || N(0, I)).

    Args:
        heads: (..., B, 2 latent), mu and the logvar that is then bounded; gets the gradient of the
            KL by both.
        noise: (..., B, latent).
        onehot: (..., B, classes).
        bound: of logvar's magnitude.

    Returns:
        z with the label behind it, (..., B, latent + classes), the KL, (..., B), and the gradient
        of z by logvar, (..., B, latent).
    """
    mu, raw = heads.chunk(2, -1)
    logvar = raw.clamp(-bound, bound)
    variance = torch.exp(logvar)
    deviation = variance.sqrt()
    z = torch.addcmul(mu, deviation, noise)
    excess = variance.sub_(1)
    kl = mu.square().add_(excess).sub_(logvar).sum(-1).mul_(0.5)
    half = torch.where(raw == logvar, 0.5, 0.0)  # beyond its bound logvar has no gradient
    torch.mul(excess, half, out=raw)
    return torch.cat([z, onehot], -1), kl, deviation.mul_(noise).mul_(half)


@_fused("logits", "losses")
def cross_entropy(logits: Tensor, images: Tensor, shares: Tensor, losses: Tensor) -> None:
    """Adds each row's binary cross-entropy to its loss, and puts its gradient, times the row's
    share, in the place of the logits.

    Args:
        logits: (..., B, pixels).
        images: (..., B, pixels).
        shares: (..., B).
        losses: (..., B).
    """
    # log(1 + exp(-|l|)) is -log of the larger one of sigmoid(l) and 1 - sigmoid(l), which lies in
    # [1/2, 1]. So the logarithms of up to FACTORS of them are that of their product, which costs a
    # fifth, and rounds no worse.
    losses.add_(logits.clamp_min(0).sum(-1)).sub_(torch.linalg.vecdot(images, logits))
    drawn = logits.sigmoid_()
    larger = torch.sub(drawn, 0.5).abs_().add_(0.5)
    products = larger.unflatten(-1, (-1, _factors(larger.shape[-1]))).prod(-1)
    losses.sub_(products.log_().sum(-1))
    drawn.sub_(images).mul_(shares.unsqueeze(-1))


@cache
def _factors(pixels: int) -> int:
    """The most numbers of a row of ``pixels`` that may be multiplied, in equal parts."""
    return max(part for part in range(1, FACTORS + 1) if pixels % part == 0)


@_fused()
def of_heads(of_z: Tensor, of_kl: Tensor, by_logvar: Tensor, shares: Tensor) -> Tensor:
    """The gradient of mu and logvar, (..., B, 2 latent).

    Args:
        of_z: (..., B, latent + classes), from :func:`cross_entropy`'s.
        of_kl: (..., B, 2 latent), what :func:`reparameterise` made of its heads.
        by_logvar: (..., B, latent), the gradient of z.
        shares: (..., B).
    """
    of_mu = of_z[..., : by_logvar.shape[-1]]
    return torch.cat([of_mu, of_mu * by_logvar], -1).addcmul_(of_kl, shares.unsqueeze(-1))


@_fused("gradient", "of_bias")
def end_layer(gradient: Tensor, seen: Tensor | None, of_bias: Tensor) -> None:
    """Writes the gradient of a layer's bias, (..., n), from that of its rows, (..., B, n).

    ``seen``: the rows behind a ReLU, which first stops the gradient, in place, where they are 0.
    """
    if seen is not None:
        gradient.mul_(seen > 0)
    torch.sum(gradient, -2, out=of_bias)


@_fused("seen", "now")
def count(losses: Tensor, shares: Tensor, seen: Tensor, now: Tensor) -> None:
    """Notes each slot's sum of losses, and moves the counter to the next step.

    Args:
        losses: (S, B).
        shares: (S, B), 0 for a row that does not count.
        seen: (T, S), which gets the sums in the row ``now``.
        now: (1,) int64.
    """
    sums = torch.where(shares > 0, losses, 0.0).sum(1)
    steps = torch.arange(len(seen), device=now.device).unsqueeze(1)
    seen.copy_(torch.where(steps == now, sums, seen))
    now.add_(1)
