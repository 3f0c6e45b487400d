"""What ranks exchange in a training step: gradients, or the factors whose product they are.

The gradient of a fully connected layer is a product of two factors with a row for each sample. In
VGG-9 such layers hold nearly all weights, and with 64 samples in a batch the factors are a tenth
to a fiftieth of the gradient's size. So ranks exchange the factors, and each multiplies them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.fusion.group import Group
from fl.server import Loss

StoreFactors = Callable[[Tensor, Tensor], None]


class Gradients:
    """Gives the parameters of a rank's model the gradients of the whole batch."""

    def __init__(self, model: nn.Module, loss: Loss, batch_size: int, group: Group) -> None:
        """``batch_size``: samples of a whole batch, at most.

        Losses with a true ``one_pass`` call the model once in a step, with one row for each
        sample; for others all gradients are exchanged as they are.
        """
        self._group = group
        if group.size == 1:
            return
        layers = _wide_layers(model, batch_size) if getattr(loss, "one_pass", False) else []
        by_rows = {id(layer.weight) for layer in layers}
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._parameters = [p for p in parameters if id(p) not in by_rows]
        sizes = [p.numel() for p in self._parameters]
        factors = [(layer.in_features, layer.out_features) for layer in layers]
        sizes += [batch_size * size for pair in factors for size in pair]
        # The last element carries the loss, which is summed in the same exchange.
        self._flat = parameters[0].new_zeros(sum(sizes) + 1, requires_grad=False)
        *parts, self._loss = self._flat.split([*sizes, 1])
        self._views = [
            part.as_strided(p.shape, p.stride())
            for part, p in zip(parts, self._parameters, strict=False)
        ]
        rows = [part.view(batch_size, -1) for part in parts[len(self._parameters) :]]
        self._layers = list(zip(layers, rows[::2], rows[1::2], strict=True))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the context wide layers store their factors instead of making gradients."""
        if self._group.size == 1:
            yield
            return
        try:
            for layer, inputs, outputs in self._layers:
                layer.forward = partial(self._forward, layer, inputs, outputs)  # type: ignore[method-assign]
            yield
        finally:
            for layer, _, _ in self._layers:
                layer.__dict__.pop("forward", None)

    def start_step(self, first: int, count: int) -> None:
        """This rank has the batch's samples from ``first`` on, ``count`` of them."""
        if self._group.size == 1:
            return
        self._flat.zero_()
        self._own = slice(first, first + count)
        self._passed: set[nn.Linear] = set()

    def sum(self, loss: Tensor) -> Tensor:
        """Sets the gradients, summed over the ranks; returns the loss summed over them."""
        if self._group.size == 1:
            return loss
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view
        self._loss.copy_(loss)
        self._group.sum(self._flat)
        for layer, inputs, outputs in self._layers:
            layer.weight.grad = outputs.T @ inputs
        return self._loss.clone().squeeze(0)

    def _forward(self, layer: nn.Linear, inputs: Tensor, outputs: Tensor, x: Tensor) -> Tensor:
        if not (layer.training and torch.is_grad_enabled()):
            return F.linear(x, layer.weight, layer.bias)
        rows = self._own.stop - self._own.start
        if layer in self._passed or x.shape != (rows, layer.in_features):
            raise ValueError(
                "a loss with one_pass must call the model once, with a row for each sample"
            )
        self._passed.add(layer)

        def store(x: Tensor, gradient: Tensor) -> None:
            inputs[self._own] = x
            outputs[self._own] = gradient

        return _Factors.apply(x, layer.weight, layer.bias, store)


class _Factors(torch.autograd.Function):
    """A fully connected layer whose backward pass stores its weight gradient's factors."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, store: StoreFactors
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.store = store
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.store(x, gradient)
        need_x, _, need_bias, _ = ctx.needs_input_grad
        own = (gradient @ weight.to(gradient.dtype)).to(x.dtype) if need_x else None
        bias = gradient.sum(0).to(weight.dtype) if need_bias else None
        return own, None, bias, None


def _wide_layers(model: nn.Module, batch_size: int) -> list[nn.Linear]:
    """Fully connected layers whose factors are smaller than their weights."""
    return [
        m
        for m in model.modules()
        if type(m) is nn.Linear
        and m.weight.requires_grad
        and batch_size * (m.in_features + m.out_features) < m.weight.numel()
    ]
