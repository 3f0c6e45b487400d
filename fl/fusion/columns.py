"""Fully connected layers whose columns are dealt out to the ranks.

In VGG-9 such layers hold nearly all weights. Reading those, writing their gradients and stepping
them takes as long for a rank's rows as for the whole batch. So each rank has some of a layer's
outputs: it computes them for the whole batch, and makes and steps their weights alone. What ranks
exchange are rows of activations, far less than the layer's gradient.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fl.fusion.group import Group
from fl.training.optimizers import State


class Columns:
    """A model's wide layers, of each of which this rank has a part.

    Args:
        parameters: all that is trained.
        layers: fully connected ones; their weights are among the parameters.
        group: this rank and its peers.
    """

    def __init__(
        self, parameters: Sequence[Tensor], layers: Sequence[nn.Linear], group: Group
    ) -> None:
        self._layers = [_Layer(layer, group) for layer in layers]
        parted = {id(layer.module.weight): layer for layer in self._layers}
        self._at = {i: parted[id(p)] for i, p in enumerate(parameters) if id(p) in parted}
        self.parameters = [parted[id(p)].own if id(p) in parted else p for p in parameters]
        """What is trained here: with this rank's part in place of each layer's weights."""
        self.parts = {id(layer.module.weight): layer.own for layer in self._layers}
        """This rank's parts, by the ``id`` of the whole weights."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts the layers compute together; at its end all ranks have whole weights."""
        try:
            for layer in self._layers:
                layer.module.forward = layer.forward  # type: ignore[assignment,method-assign]
            yield
        finally:
            for layer in self._layers:
                layer.module.__dict__.pop("forward", None)
        for layer in self._layers:
            layer.spread(layer.module.weight.data)

    def start_step(self, count: int, most: int) -> None:
        """The model sees ``count`` rows on this rank, and on none more than ``most``."""
        for layer in self._layers:
            layer.own.grad, layer.passed, layer.count, layer.most = None, False, count, most

    def whole(self, state: State) -> State:
        """An optimiser's state with all ranks' parts; all ranks must ask for it."""
        return {name: self._mapped(tensors, _Layer.whole) for name, tensors in state.items()}

    def part(self, state: State) -> State:
        """This rank's part of a :meth:`whole` state."""
        return {name: self._mapped(tensors, _Layer.part) for name, tensors in state.items()}

    def _mapped(self, tensors: Sequence[Tensor], of: Any) -> list[Tensor]:
        # A state has lists with a matrix for each layer, and others: of steps.
        return [
            of(self._at[i], tensor) if i in self._at and tensor.dim() == 2 else tensor
            for i, tensor in enumerate(tensors)
        ]


class _Layer:
    """A wide layer, this rank's part of its weights, and the present step's rows."""

    def __init__(self, module: nn.Linear, group: Group) -> None:
        self.module, self.group = module, group
        self.own = nn.Parameter(self.part(module.weight.data))
        """(own outputs, in_features), in the memory of the layer's weights."""
        self.passed, self.count, self.most = False, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        """Takes the place of the module's own."""
        if self.passed or x.shape != (self.count, self.module.in_features):
            raise ValueError(
                "a loss with one_pass must call the model once, with a row for each sample"
            )
        self.passed = True
        out: Tensor = _Product.apply(x, self.own, self)
        return out if self.module.bias is None else out + self.module.bias.to(out.dtype)

    def part(self, whole: Tensor) -> Tensor:
        """This rank's rows of the layer's weights, or of what has their shape."""
        return whole.tensor_split(self.group.size)[self.group.rank]

    def whole(self, part: Tensor) -> Tensor:
        """All ranks' parts."""
        found = torch.empty_like(self.module.weight)
        self.part(found).copy_(part)
        self.spread(found)
        return found

    def spread(self, whole: Tensor) -> None:
        """Each rank gives its part of the tensor to all."""
        for rank, part in enumerate(whole.tensor_split(self.group.size)):
            self.group.broadcast(part, rank)

    def gathered(self, x: Tensor) -> Tensor:
        """All ranks' rows: own (count, d) to (ranks most, d), filled up with zeros."""
        return self.group.gather(self._filled(x))

    def to_rows(self, own: Tensor) -> Tensor:
        """From all rows of own outputs, (ranks most, own), to all outputs of own rows."""
        shapes = [(self.most, width) for width in self._widths()]
        return torch.cat(self.group.swap(own.split(self.most), shapes), dim=1)[: self.count]

    def to_columns(self, rows: Tensor) -> Tensor:
        """From all outputs of own rows, (count, outputs), to all rows of own outputs."""
        parts = self._filled(rows).split(self._widths(), dim=1)
        shape = self.most, len(self.own)
        return torch.cat(self.group.swap(parts, [shape] * self.group.size))

    def summed(self, partial: Tensor) -> Tensor:
        """The sum over ranks of (ranks most, d), of which only own rows are wanted."""
        shape = self.most, partial.shape[1]
        parts = self.group.swap(partial.split(self.most), [shape] * self.group.size)
        return torch.stack(parts).sum(0)[: self.count]

    def _widths(self) -> list[int]:
        return [len(part) for part in self.module.weight.tensor_split(self.group.size)]

    def _filled(self, rows: Tensor) -> Tensor:
        if len(rows) == self.most:
            return rows
        filled = rows.new_zeros(self.most, rows.shape[1])
        filled[: len(rows)] = rows
        return filled


class _Product(torch.autograd.Function):
    """A wide layer without its bias: own rows in, own rows out, own weights' gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: _Layer) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rows, weight = layer.gathered(x), weight.to(x.dtype)
        ctx.save_for_backward(rows, weight)
        ctx.layer = layer
        return layer.to_rows(rows @ weight.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (rows, weight), layer = ctx.saved_tensors, ctx.layer
        columns = layer.to_columns(gradient)
        of_weight = (columns.T @ rows).to(layer.own.dtype)
        return layer.summed(columns @ weight), of_weight, None
