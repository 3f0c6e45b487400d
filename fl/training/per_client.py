"""A cohort's model: all clients' samples in one batch, each client with its own weights.

The rows of a batch are the clients' samples, one client's after another's. What is done to each row
alike (an activation, a loss) is done to all at once; a layer with weights or a state runs once per
client on that client's rows. On a CPU this is faster than stacked weights in one batched product
(docs/dev/log.md): a product of this size uses a core fully by itself, and a client's weights stay
in cache.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fl.models import shell
from fl.models.layers import AnyDropout
from fl.training import products
from fl.training.products import product


class Turns:
    """The clients in a batch, by position, and how many rows each has."""

    clients: Sequence[int] = ()
    rows: Sequence[int] = ()


class PerClient(nn.Module):
    """One layer of every client, each for its own rows."""

    def __init__(self, layers: Sequence[nn.Module], turns: Turns) -> None:
        super().__init__()
        # A plain list, as the weights are parameters of the clients' models, not of this one.
        self._layers = list(layers)
        self.is_linear = all(type(layer) is nn.Linear for layer in layers)
        self._turns = turns

    def forward(self, x: Tensor) -> Tensor:
        """Rows (N, ...) in, rows (N, ...) out."""
        turns = self._turns
        layers = [self._layers[k] for k in turns.clients]
        if self.is_linear and x.dim() == 2 and products.available(x):
            weights = [layer.weight for layer in layers]
            biases = [layer.bias for layer in layers if layer.bias is not None]
            return _Linear.apply(x, turns.rows, *weights, *biases)
        parts = zip(layers, _parts(x, turns.rows), strict=True)
        return _joined([layer(part) for layer, part in parts])


def cohort_model(models: Sequence[nn.Module], turns: Turns) -> nn.Module:
    """One model whose forward is all of theirs, over the rows that ``turns`` describes.

    ``models`` have the same layers. Their weights are shared, not copied: training it trains them.
    """
    first = models[0]
    if _is_own(first):
        return PerClient(models, turns)
    merged = shell(first)
    # Under all its names, if a layer has several.
    paths = [path for path, _ in first.named_modules(remove_duplicate=False)]
    for name in [path for path in paths if path and "." not in path]:
        setattr(merged, name, cohort_model([m.get_submodule(name) for m in models], turns))
    return merged


def dropout_in(model: nn.Module) -> str | None:
    """Name of the model's first active dropout, whose masks come from torch's global stream."""
    for name, layer in model.named_modules():
        if isinstance(layer, AnyDropout) and layer.p > 0:
            return f"{name} is a {type(layer).__name__}"
    return None


ALIKE = (
    *(nn.Flatten, nn.Unflatten, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.Tanh),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample),
)
"""Layers whose output for a row does not depend, to the last bit, on the row's place in the batch.
Others, such as the sigmoid, round differently in the last few elements of a tensor."""


def _is_own(layer: nn.Module) -> bool:
    """Whether the layer runs for each client by itself."""
    weights, buffers = layer.parameters(recurse=False), layer.buffers(recurse=False)
    if [*weights, *buffers]:
        return True
    is_leaf = next(layer.children(), None) is None
    return is_leaf and not isinstance(layer, ALIKE)


def _parts(x: Tensor, rows: Sequence[int]) -> Sequence[Tensor]:
    return [x] if len(rows) == 1 else x.split(list(rows))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _Linear(torch.autograd.Function):
    """nn.Linear of every client on its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Sequence[int], *parameters: Tensor) -> Tensor:
        weights, biases = parameters[: len(rows)], parameters[len(rows) :] or [None] * len(rows)
        ctx.rows, ctx.has_biases = rows, len(parameters) > len(rows)
        ctx.save_for_backward(x, *weights)
        out = x.new_empty(len(x), len(weights[0]))
        parts = zip(_parts(x, rows), weights, biases, _parts(out, rows), strict=True)
        for own, weight, bias, own_out in parts:
            product(own, weight.t(), add=bias, out=own_out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        grads = _parts(grad.contiguous(), ctx.rows)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.empty_like(x)
            for g, w, own in zip(grads, weights, _parts(of_x, ctx.rows), strict=True):
                product(g, w, out=own)
        if not any(ctx.needs_input_grad[2:]):  # frozen weights
            return of_x, *[None] * (len(ctx.needs_input_grad) - 1)
        of_weights = [torch.empty_like(w) for w in weights]
        for g, own, of_weight in zip(grads, _parts(x, ctx.rows), of_weights, strict=True):
            product(g.t(), own, out=of_weight)
        of_biases = [g.sum(0) for g in grads] if ctx.has_biases else []
        return of_x, None, *of_weights, *of_biases
