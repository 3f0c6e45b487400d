"""The gradient of FedMHO's Eq. 3 for a fully connected CVAE, as a formula."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fl.federation import Batch, TaskOutput
from fl.models.architectures.cvaes import CVAE, LOGVAR_BOUND, DenseEncoder
from fl.training.recipe import Formula, MeanLoss, Recipe, Reduction, Step, batches, minimise
from kernels import cvae

# A chain of linear layers with ReLUs between, forwards and backwards without autograd.

RESHAPES = (nn.Flatten, nn.Unflatten, nn.Identity)
"""Layers that change no number: a chain goes on flat rows."""


class Affine(NamedTuple):
    """A linear layer of one model, or of S models stacked, with where its gradients go."""

    weight: Tensor
    """(outputs, inputs), or (S, outputs, inputs)."""
    of_weight: Tensor
    bias: Tensor
    """(outputs,), or (S, outputs)."""
    of_bias: Tensor


class LinearChain:
    """The layers of a chain, with what a backward pass needs of the last forward one.

    Rows are (B, n), or (S, B, n) for stacked models.
    """

    def __init__(self, layers: Sequence[Affine], operations: Any) -> None:
        """``operations``: those of :mod:`kernels.cvae`."""
        self._layers, self._end_layer = layers, operations.end_layer
        self._seen: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (..., B, inputs) in, rows (..., B, outputs) out."""
        self._seen = []
        for k, layer in enumerate(self._layers):
            self._seen.append(rows.relu_() if k else rows)
            if rows.dim() == 2:
                rows = torch.addmm(layer.bias, rows, layer.weight.t())
            else:
                rows = torch.baddbmm(layer.bias.unsqueeze(1), rows, layer.weight.mT)
        return rows

    def backward(self, gradient: Tensor, *, of_inputs: bool = True) -> Tensor:
        """Writes the weights' gradients; returns the inputs', (..., B, inputs), if they are asked
        for.

        Args:
            gradient: of the outputs, (..., B, outputs).
            of_inputs: whether the first layer's inputs have a gradient; else what is returned is
                that of its outputs.
        """
        product = torch.mm if gradient.dim() == 2 else torch.bmm
        behind = None
        for k, layer in reversed([*enumerate(self._layers)]):
            self._end_layer(gradient, behind, layer.of_bias)
            behind = self._seen[k]
            product(gradient.mT, behind, out=layer.of_weight)
            if k or of_inputs:
                gradient = product(gradient, layer.weight)
        return gradient


def _is_chain(layers: Sequence[nn.Module]) -> bool:
    """Whether these are linear layers with biases, and a ReLU between each two."""
    linear = all(type(layer) is nn.Linear and layer.bias is not None for layer in layers[::2])
    return len(layers) % 2 == 1 and linear and all(type(own) is nn.ReLU for own in layers[1::2])


# Training of one client whose recipe has its gradient as a formula: without autograd.
#
# A small client's step is a few products of matrices, and autograd, the passes that it makes over
# activations, and a kernel call for each parameter take longer than these. Here a step is the
# formula and one call of the optimiser, on one flat buffer for all weights and one for their
# gradients.


def train(recipe: Recipe) -> TaskOutput:
    """Trains one client; returns what it uploads."""
    assert recipe.gradient is not None
    assert isinstance(recipe.model, CVAE)
    weights = flattened(parameters_of(recipe.model))
    gradient, mean_loss = recipe.gradient(weights), MeanLoss(recipe)
    optimizer = recipe.optimizer.for_cohort([[weights]])

    def steps() -> Iterator[Step]:
        for batch in batches(recipe, mean_loss):
            losses = gradient(batch)
            yield Step(losses.sum())
            mean_loss.add(losses)

    with torch.no_grad():
        # The loop is given no parameters, as it would clear their gradients before the step.
        minimise(steps(), [[]], optimizer)
    return mean_loss.output()


def flattened(parameters: Sequence[Tensor], *, stacked: bool = False) -> Tensor:
    """Moves weights into one tensor, (P,), or (S, P) if they are ``stacked``, and their gradients
    into its ``grad``; each parameter, and its ``grad``, is a view of these from now on."""
    first = int(stacked)
    weights = torch.cat([p.detach().flatten(first) for p in parameters], -1)
    weights.grad = torch.empty_like(weights)  # a formula writes all of it
    shapes = [p.shape[first:] for p in parameters]
    parts = zip(parameters, _cut(weights, shapes), _cut(weights.grad, shapes), strict=True)
    for parameter, own, gradient in parts:
        parameter.data, parameter.grad = own, gradient
    return weights


def _cut(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Tensors of these shapes, (..., *shape), which lie one behind another in (..., P)."""
    parts = flat.split([prod(shape) for shape in shapes], -1)
    return [part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True)]


def gradient_of(model: CVAE, reduction: Reduction) -> Formula | None:
    """What makes the gradient of weights as :func:`flattened` has those that
    :func:`parameters_of` names.

    None where the model has other layers than linear ones with ReLUs between.

    Args:
        model: whose layers these are.
        reduction: how a batch's losses are combined into the one whose gradient is written.
    """
    encoder = model.encoder
    if type(encoder) is not DenseEncoder:
        return None
    chains = (
        [*encoder.layers.children(), encoder.mu],
        [*encoder.layers.children(), encoder.logvar],
        [own for own in model.decoder.layers.children() if type(own) not in RESHAPES],
    )
    return partial(DenseCVAE, model, reduction) if all(map(_is_chain, chains)) else None


def parameters_of(model: nn.Module) -> list[Tensor]:
    """The model's parameters in an order in which mu and logvar have one weight and one bias."""
    assert isinstance(model, CVAE)
    encoder, layers = model.encoder, model.decoder.layers
    assert isinstance(encoder, DenseEncoder)
    mu, logvar = encoder.mu, encoder.logvar
    heads = [mu.weight, logvar.weight, mu.bias, logvar.bias]
    return [*encoder.layers.parameters(), *heads, *layers.parameters()]


class DenseCVAE:
    """A fully connected CVAE: the loss of each sample, with the gradient of their mean or sum.

    Args:
        model: whose layers these are.
        reduction: how a batch's losses are combined into the one whose gradient is written.
        weights: (P,), or (S, P) of stacked models, in the order of :func:`parameters_of`, with
            their ``grad``.
    """

    def __init__(self, model: CVAE, reduction: Reduction, weights: Tensor) -> None:
        self._classes, self._reduction = model.num_classes, reduction
        shapes: list[Sequence[int]] = [p.shape for p in parameters_of(model)]
        first = len(list(model.encoder.parameters())) - 4  # of mu and logvar, which are one layer
        latent, hidden = shapes[first]
        shapes[first : first + 4] = (2 * latent, hidden), (2 * latent,)
        assert weights.grad is not None
        both = list(zip(_cut(weights, shapes), _cut(weights.grad, shapes), strict=True))
        layers = [Affine(*both[k], *both[k + 1]) for k in range(0, len(both), 2)]
        # On a CPU torch takes longer to find an operation than to do it for one model.
        self._do: Any = cvae.fused if weights.dim() == 2 else cvae
        self._encoder = LinearChain(layers[: first // 2 + 1], self._do)
        self._decoder = LinearChain(layers[first // 2 + 1 :], self._do)

    @torch.no_grad()
    def __call__(self, batch: Batch, shares: Tensor | None = None) -> Tensor:
        """Writes the gradient; returns the losses, (B,), as
        :func:`fl.models.architectures.cvaes.elbo_losses`.

        Takes images (B, C, H, W) in [0, 1] and labels (B,), or both as ``inputs`` of
        :func:`kernels.cvae.labelled`, and noise (B, latent) ~ N(0, I). Of stacked models all have a
        leading axis, and ``shares`` (S, B) says each sample's part in the loss.
        """
        noise, do = batch["noise"], self._do
        if "inputs" in batch:
            inputs = batch["inputs"]
            images = inputs[..., : -self._classes]
        else:
            images = batch["images"].flatten(noise.dim() - 1)
            inputs = cvae.labelled(images, batch["labels"], self._classes)
        if shares is None:
            shares = _shares(len(inputs), self._reduction, inputs.device, inputs.dtype)
        heads = self._encoder.forward(inputs)
        z, losses, by_logvar = do.reparameterise(
            heads, noise, inputs[..., -self._classes :], LOGVAR_BOUND
        )
        logits = self._decoder.forward(z)
        do.cross_entropy(logits, images, shares, losses)
        of_z = self._decoder.backward(logits)
        of_heads = do.of_heads(of_z, heads, by_logvar, shares)
        self._encoder.backward(of_heads, of_inputs=False)
        return losses


@lru_cache
def _shares(size: int, reduction: Reduction, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Each sample's part in the loss of a batch."""
    share = 1 / size if reduction == "mean" else 1.0
    return torch.full((size,), share, device=device, dtype=dtype)
