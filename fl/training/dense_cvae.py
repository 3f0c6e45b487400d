"""The gradient of FedMHO's Eq. 3 for a fully connected CVAE, as a formula."""

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from fl.federation import Batch
from fl.models.architectures.cvae_small import DenseEncoder
from fl.models.cvae import CVAE, LOGVAR_BOUND, one_hot
from fl.training.linear_chain import LinearChain

Reduction = Literal["mean", "sum"]
FACTORS = 120
"""So many numbers of 1/2 and more have a product that float32 holds with all of its digits."""


def gradient_of(model: CVAE, reduction: Reduction) -> Callable[[Batch], Tensor] | None:
    """What writes a batch's gradient to each weight's ``grad`` and returns the losses, (B,).

    None where the model has other layers than linear ones with ReLUs between.
    """
    encoder = model.encoder
    if type(encoder) is not DenseEncoder:
        return None
    heads = [encoder.mu], [encoder.logvar]
    chains = encoder.layers.children(), *heads, model.decoder.layers.children()
    hidden, mu, logvar, decoder = (LinearChain.of(layers) for layers in chains)
    if hidden is None or mu is None or logvar is None or decoder is None:
        return None
    return DenseCVAE(hidden, mu, logvar, decoder, model.num_classes, reduction)


class DenseCVAE:
    """A fully connected CVAE: the loss of each sample, with the gradient of their mean or sum.

    Args:
        hidden: from pixels and one-hot label to the encoder's hidden vector.
        mu: from that to the mean of z.
        logvar: from that to the logarithm of z's variance, before it is bounded.
        decoder: from z and one-hot label to the logits of the pixels.
        num_classes: length of a one-hot label.
        reduction: how a batch's losses are combined into the one whose gradient is written.
    """

    def __init__(
        self,
        hidden: LinearChain,
        mu: LinearChain,
        logvar: LinearChain,
        decoder: LinearChain,
        num_classes: int,
        reduction: Reduction,
    ) -> None:
        self._hidden, self._mu, self._logvar, self._decoder = hidden, mu, logvar, decoder
        self._num_classes, self._reduction = num_classes, reduction

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Writes the gradient; returns the losses, (B,), as :func:`fl.models.elbo_losses`.

        Takes images (B, C, H, W) in [0, 1], labels (B,) and noise (B, latent) ~ N(0, I).
        """
        images, noise = batch["images"].flatten(1), batch["noise"]
        onehot = one_hot(batch["labels"], self._num_classes, images.dtype)
        share = 1 / len(images) if self._reduction == "mean" else 1.0

        hidden = self._hidden.forward(torch.cat([images, onehot], 1))
        mu, raw = self._mu.forward(hidden), self._logvar.forward(hidden)
        logvar = raw.clamp(-LOGVAR_BOUND, LOGVAR_BOUND)
        deviation = torch.exp(logvar / 2)
        z = torch.addcmul(mu, deviation, noise)
        logits = self._decoder.forward(torch.cat([z, onehot], 1))

        kl = -0.5 * (1 + logvar - mu.square() - deviation.square()).sum(1)
        losses, of_logits = _cross_entropy(logits, images)
        of_z = self._decoder.backward(of_logits.mul_(share))[:, : noise.shape[1]]
        # d KL / d mu = mu, d KL / d logvar = (exp(logvar) - 1) / 2, d z / d logvar = (z - mu) / 2.
        of_mu = torch.add(of_z, mu, alpha=share)
        of_logvar = of_z * noise * (deviation / 2)
        of_logvar.add_(deviation.square().sub_(1), alpha=share / 2).mul_(raw == logvar)
        of_hidden = self._mu.backward(of_mu).add_(self._logvar.backward(of_logvar))
        self._hidden.backward(of_hidden, of_inputs=False)
        return losses.add_(kl)


def _cross_entropy(logits: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's binary cross-entropy, (B,), and the gradient of their sum, (B, pixels), in the
    place of the logits.

    log(1 + exp(-|l|)) is -log of the larger one of sigmoid(l) and 1 - sigmoid(l), which lies in
    [1/2, 1]. So the logarithms of up to ``FACTORS`` of them are that of their product, which costs
    a fifth, and rounds no worse.
    """
    linear = logits.clamp_min(0).sum(1).sub_(torch.linalg.vecdot(images, logits))
    drawn = logits.sigmoid_()
    larger = torch.sub(drawn, 0.5).abs_().add_(0.5)
    products = larger.unflatten(1, (-1, _factors(larger.shape[1]))).prod(2)
    return linear.sub_(products.log_().sum(1)), drawn.sub_(images)


@cache
def _factors(pixels: int) -> int:
    """The most numbers of a row of ``pixels`` that may be multiplied, in equal parts."""
    return max(part for part in range(1, FACTORS + 1) if pixels % part == 0)
