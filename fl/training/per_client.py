"""A cohort's model: every client's samples in one batch, every client's weights its own.

The rows of a batch are the clients' samples, one client's after the other's. What a layer does to
each row alike (an activation, a loss) is done to all at once; a layer with weights or a state runs
once per client on that client's rows. On a CPU this beats stacked weights in one batched product
(docs/log.md): a product of this size fills a core by itself, and a client's weights stay in cache.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fl.models import shell


class Turns:
    """Whose rows a batch holds: the clients, by position, and how many rows each has."""

    clients: Sequence[int] = ()
    rows: Sequence[int] = ()


class PerClient(nn.Module):
    """One layer of every client, each for its own rows."""

    def __init__(self, layers: Sequence[nn.Module], turns: Turns) -> None:
        super().__init__()
        # A plain list: the weights belong to the clients' models, not to this one.
        self._layers = list(layers)
        self._linear = all(type(layer) is nn.Linear for layer in layers)
        self._turns = turns

    def forward(self, x: Tensor) -> Tensor:
        """Rows (N, ...) in, rows (N, ...) out."""
        turns = self._turns
        layers = [self._layers[k] for k in turns.clients]
        if self._linear and x.dim() == 2 and _has_onednn(x):
            weights = [layer.weight for layer in layers]
            biases = [layer.bias for layer in layers if layer.bias is not None]
            return _Linear.apply(x, turns.rows, *weights, *biases)
        parts = zip(layers, _parts(x, turns.rows), strict=True)
        return _joined([layer(part) for layer, part in parts])


def cohort_model(models: Sequence[nn.Module], turns: Turns) -> nn.Module:
    """One model whose forward is all of theirs, over the rows that ``turns`` describes.

    ``models`` are of one make. Their weights are shared, not copied: training this trains them.
    """
    first = models[0]
    if _is_own(first):
        return PerClient(models, turns)
    merged = shell(first)
    for name, _ in first.named_children():
        merged._modules[name] = cohort_model([m.get_submodule(name) for m in models], turns)
    return merged


ALIKE = (
    *(nn.Flatten, nn.Unflatten, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.Tanh),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample),
)
"""Layers that do the same to every row, to the last bit, wherever in a batch it lies. Others, such
as the sigmoid, round differently in the last few elements of a tensor than before them."""


def _is_own(layer: nn.Module) -> bool:
    """Whether the layer runs for each client by itself."""
    is_leaf = next(layer.children(), None) is None
    return bool(layer._parameters or layer._buffers) or (is_leaf and not isinstance(layer, ALIKE))


def _parts(x: Tensor, rows: Sequence[int]) -> Sequence[Tensor]:
    return [x] if len(rows) == 1 else x.split(list(rows))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _has_onednn(x: Tensor) -> bool:
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
    return on_cpu and torch.backends.mkldnn.is_available()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weight' + bias`` with oneDNN: the operator behind torch's own compiled Linear.

    torch multiplies float32 matrices with MKL, which reaches half of oneDNN's speed on AMD's
    processors, and rounds differently where memory is aligned differently.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """nn.Linear of every client on its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Sequence[int], *parameters: Tensor) -> Tensor:
        weights, biases = parameters[: len(rows)], parameters[len(rows) :] or [None] * len(rows)
        ctx.rows, ctx.has_biases = rows, len(parameters) > len(rows)
        ctx.save_for_backward(x, *weights)
        parts = zip(_parts(x, rows), weights, biases, strict=True)
        return _joined([_product(own, weight, bias) for own, weight, bias in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        grads, inputs = _parts(grad.contiguous(), ctx.rows), _parts(x, ctx.rows)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _joined([_product(g, w.t()) for g, w in zip(grads, weights, strict=True)])
        of_weights = [_product(g.t(), own.t()) for g, own in zip(grads, inputs, strict=True)]
        of_biases = [g.sum(0) for g in grads] if ctx.has_biases else []
        return of_x, None, *of_weights, *of_biases
