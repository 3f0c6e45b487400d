"""A chain of linear layers and ReLUs, forwards and backwards without autograd."""

from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

RESHAPES = (nn.Flatten, nn.Unflatten, nn.Identity)
"""Layers that change no number: a chain goes on flat rows."""


class LinearChain:
    """The layers of a chain, with what a backward pass needs of the last forward one.

    Args:
        layers: each ``nn.Linear``, or ``nn.ReLU`` behind one; their weights' ``grad`` is there.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        self._seen: list[Tensor] = []

    @classmethod
    def of(cls, layers: Iterable[nn.Module]) -> Self | None:
        """The chain that a model's layers are; None if there are others among them."""
        own = [layer for layer in layers if type(layer) not in RESHAPES]
        plain = all(type(layer) is nn.ReLU or _is_affine(layer) for layer in own)
        return cls(own) if plain and own and type(own[0]) is nn.Linear else None

    def forward(self, rows: Tensor) -> Tensor:
        """Rows (B, inputs) in, rows (B, outputs) out."""
        self._seen = []
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                self._seen.append(rows)
                rows = torch.addmm(layer.bias, rows, layer.weight.t())
            else:
                rows = rows.relu_()
        self._seen.append(rows)
        return rows

    def backward(self, gradient: Tensor, *, of_inputs: bool = True) -> Tensor:
        """Writes the weights' gradients; returns the inputs', (B, inputs), if they are asked for.

        Args:
            gradient: of the outputs, (B, outputs), which is overwritten behind a ReLU.
            of_inputs: whether the first layer's inputs have a gradient; else what is returned is
                that of its outputs.
        """
        seen = list(self._seen)
        rows = seen.pop()
        for layer in reversed(self._layers):
            if not isinstance(layer, nn.Linear):
                gradient = gradient.mul_(rows > 0)
                continue
            rows = seen.pop()
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            torch.mm(gradient.t(), rows, out=layer.weight.grad)
            torch.sum(gradient, 0, out=layer.bias.grad)
            if seen or of_inputs:
                gradient = gradient @ layer.weight
        return gradient


def _is_affine(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and layer.bias is not None
