"""The gradient of FedMHO's Eq. 3 for a fully connected CVAE, as a formula."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fl.federation import Batch, TaskOutput
from fl.models.architectures.cvaes import DenseEncoder
from fl.models.cvae import CVAE, LOGVAR_BOUND, one_hot
from fl.training.recipe import MeanLoss, Recipe, Step, batches, minimise

# A chain of linear layers and ReLUs, forwards and backwards without autograd.

RESHAPES = (nn.Flatten, nn.Unflatten, nn.Identity)
"""Layers that change no number: a chain goes on flat rows."""


Weights = Callable[[Tensor], Tensor]
"""A parameter itself, or what stands in its place."""


class Affine(NamedTuple):
    """A linear layer's weights, whose ``grad`` is there: of one model, or of S models stacked."""

    weight: Tensor
    """(outputs, inputs), or (S, outputs, inputs)."""
    bias: Tensor
    """(outputs,), or (S, outputs)."""


class LinearChain:
    """The layers of a chain, with what a backward pass needs of the last forward one.

    Rows are (B, ...), or (S, B, ...) for stacked models.

    Args:
        layers: linear ones, and None for a ReLU behind one.
    """

    def __init__(self, layers: Sequence[Affine | None]) -> None:
        self._layers = layers
        self._seen: list[Tensor] = []

    @classmethod
    def of(cls, layers: Iterable[nn.Module], weights: Weights = lambda own: own) -> Self | None:
        """The chain that a model's layers are; None if there are others among them.

        ``weights``: as of :func:`gradient_of`.
        """
        own = [layer for layer in layers if type(layer) not in RESHAPES]
        plain = all(type(layer) is nn.ReLU or _is_affine(layer) for layer in own)
        if not (plain and own and type(own[0]) is nn.Linear):
            return None
        return cls(
            [
                Affine(weights(layer.weight), weights(layer.bias))
                if isinstance(layer, nn.Linear)
                else None
                for layer in own
            ]
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (..., B, inputs) in, rows (..., B, outputs) out."""
        self._seen = []
        for layer in self._layers:
            if layer is None:
                rows = rows.relu_()
                continue
            self._seen.append(rows)
            if rows.dim() == 2:
                rows = torch.addmm(layer.bias, rows, layer.weight.t())
            else:
                rows = torch.baddbmm(layer.bias.unsqueeze(1), rows, layer.weight.mT)
        self._seen.append(rows)
        return rows

    def backward(self, gradient: Tensor, *, of_inputs: bool = True) -> Tensor:
        """Writes the weights' gradients; returns the inputs', (..., B, inputs), if they are asked
        for.

        Args:
            gradient: of the outputs, (..., B, outputs), which is overwritten behind a ReLU.
            of_inputs: whether the first layer's inputs have a gradient; else what is returned is
                that of its outputs.
        """
        seen = list(self._seen)
        rows = seen.pop()
        product = torch.mm if gradient.dim() == 2 else torch.bmm
        for layer in reversed(self._layers):
            if layer is None:
                gradient = gradient.mul_(rows > 0)
                continue
            rows = seen.pop()
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            product(gradient.mT, rows, out=layer.weight.grad)
            torch.sum(gradient, -2, out=layer.bias.grad)
            if seen or of_inputs:
                gradient = gradient @ layer.weight
        return gradient


def _is_affine(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and layer.bias is not None


# Training of one client whose recipe has its gradient as a formula: without autograd.
#
# A small client's step is a few products of matrices, and autograd, the passes that it makes over
# activations, and a kernel call for each parameter take longer than these. Here a step is the
# formula and one call of the optimiser, on one flat buffer for all weights and one for their
# gradients.


def train(recipe: Recipe) -> TaskOutput:
    """Trains one client; returns what it uploads."""
    assert recipe.gradient is not None
    gradient, mean_loss = recipe.gradient, MeanLoss(recipe)
    optimizer = recipe.optimizer.for_cohort([[flattened(recipe.model)]])

    def steps() -> Iterator[Step]:
        for batch in batches(recipe, mean_loss):
            losses = gradient(batch)
            yield Step(losses.sum())
            mean_loss.add(losses)

    with torch.no_grad():
        # The loop is given no parameters, as it would clear their gradients before the step.
        minimise(steps(), [[]], optimizer)
    return mean_loss.output()


def flattened(model: nn.Module) -> Tensor:
    """Moves all weights into one tensor, and all gradients into its ``grad``; each parameter, and
    its ``grad``, is a view of these from now on."""
    parameters = list(model.parameters())
    weights = torch.cat([p.detach().flatten() for p in parameters])
    weights.grad = torch.empty_like(weights)  # a formula writes all of it
    sizes = [p.numel() for p in parameters]
    parts = zip(parameters, weights.split(sizes), weights.grad.split(sizes), strict=True)
    for parameter, own, gradient in parts:
        parameter.data, parameter.grad = own.view_as(parameter), gradient.view_as(parameter)
    return weights


Reduction = Literal["mean", "sum"]
FACTORS = 120
"""So many numbers of 1/2 and more have a product that float32 holds with all of its digits."""


def gradient_of(
    model: CVAE, reduction: Reduction, weights: Weights = lambda own: own
) -> "DenseCVAE | None":
    """What writes a batch's gradient to each weight's ``grad`` and returns the losses, (B,).

    None where the model has other layers than linear ones with ReLUs between.

    Args:
        model: whose layers these are.
        reduction: how a batch's losses are combined into the one whose gradient is written.
        weights: gives what is trained in a parameter's place: that of many models, stacked.
    """
    encoder = model.encoder
    if type(encoder) is not DenseEncoder:
        return None
    heads = [encoder.mu], [encoder.logvar]
    parts = encoder.layers.children(), *heads, model.decoder.layers.children()
    chains = [chain for part in parts if (chain := LinearChain.of(part, weights))]
    return DenseCVAE(chains, model.num_classes, reduction) if len(chains) == len(parts) else None


class DenseCVAE:
    """A fully connected CVAE: the loss of each sample, with the gradient of their mean or sum.

    Args:
        chains: from pixels and one-hot label to the encoder's hidden vector; from that to the mean
            of z, and to the logarithm of z's variance before it is bounded; from z and one-hot
            label to the logits of the pixels.
        num_classes: length of a one-hot label.
        reduction: how a batch's losses are combined into the one whose gradient is written.
    """

    def __init__(
        self, chains: Sequence[LinearChain], num_classes: int, reduction: Reduction
    ) -> None:
        self._hidden, self._mu, self._logvar, self._decoder = chains
        self._num_classes, self._reduction = num_classes, reduction

    @torch.no_grad()
    def __call__(self, batch: Batch, shares: Tensor | None = None) -> Tensor:
        """Writes the gradient; returns the losses, (B,), as :func:`fl.models.elbo_losses`.

        Takes images (B, C, H, W) in [0, 1], labels (B,) and noise (B, latent) ~ N(0, I). Of stacked
        models all have a leading axis, and ``shares`` (S, B) says each sample's part in the loss.
        """
        noise = batch["noise"]
        images = batch["images"].flatten(noise.dim() - 1)
        onehot = one_hot(batch["labels"], self._num_classes, images.dtype)
        share: float | Tensor = 1 / len(images) if self._reduction == "mean" else 1.0
        if shares is not None:
            share = shares.unsqueeze(-1)

        hidden = self._hidden.forward(torch.cat([images, onehot], -1))
        mu, raw = self._mu.forward(hidden), self._logvar.forward(hidden)
        logvar = raw.clamp(-LOGVAR_BOUND, LOGVAR_BOUND)
        deviation = torch.exp(logvar / 2)
        z = torch.addcmul(mu, deviation, noise)
        logits = self._decoder.forward(torch.cat([z, onehot], -1))

        kl = -0.5 * (1 + logvar - mu.square() - deviation.square()).sum(-1)
        losses, of_logits = _cross_entropy(logits, images)
        of_z = self._decoder.backward(of_logits.mul_(share))[..., : noise.shape[-1]]
        # d KL / d mu = mu, d KL / d logvar = (exp(logvar) - 1) / 2, d z / d logvar = (z - mu) / 2.
        of_mu = _plus(of_z, mu, share)
        of_logvar = _plus(of_z * noise * (deviation / 2), deviation.square().sub_(1), share / 2)
        of_logvar.mul_(raw == logvar)
        of_hidden = self._mu.backward(of_mu).add_(self._logvar.backward(of_logvar))
        self._hidden.backward(of_hidden, of_inputs=False)
        return losses.add_(kl)


def _plus(one: Tensor, other: Tensor, share: float | Tensor) -> Tensor:
    """``one`` plus a share of another."""
    if isinstance(share, float):
        return torch.add(one, other, alpha=share)
    return torch.addcmul(one, other, share)


def _cross_entropy(logits: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's binary cross-entropy, (..., B), and the gradient of their sum, (..., B, pixels),
    in the place of the logits.

    log(1 + exp(-|l|)) is -log of the larger one of sigmoid(l) and 1 - sigmoid(l), which lies in
    [1/2, 1]. So the logarithms of up to ``FACTORS`` of them are that of their product, which costs
    a fifth, and rounds no worse.
    """
    linear = logits.clamp_min(0).sum(-1).sub_(torch.linalg.vecdot(images, logits))
    drawn = logits.sigmoid_()
    larger = torch.sub(drawn, 0.5).abs_().add_(0.5)
    products = larger.unflatten(-1, (-1, _factors(larger.shape[-1]))).prod(-1)
    return linear.sub_(products.log_().sum(-1)), drawn.sub_(images)


@cache
def _factors(pixels: int) -> int:
    """The most numbers of a row of ``pixels`` that may be multiplied, in equal parts."""
    return max(part for part in range(1, FACTORS + 1) if pixels % part == 0)
