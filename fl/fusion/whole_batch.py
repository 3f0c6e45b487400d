"""BatchNorm and losses over whole batches, for ranks that each have a slice of every batch.

BatchNorm normalises by the statistics of all rows, and some losses are no mean over rows. So ranks
sum BatchNorm's statistics, forwards and backwards, and exchange the rows' logits, from which each
computes the whole batch's loss. Both are small beside the gradients that ranks exchange.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.fusion.group import Group
from fl.models.ensemble import Ensemble
from fl.models.shapes import AnyBatchNorm
from fl.server import Loss


class WholeBatch:
    """Makes a model on one rank compute on its slice of a batch as with the whole batch."""

    def __init__(self, model: nn.Module, group: Group) -> None:
        self._group = group
        self._norms = [m for m in model.modules() if isinstance(m, AnyBatchNorm)]
        self._models = list(model.members) if isinstance(model, Ensemble) else [model]

    def start_step(self, first: int, count: int, rows: int) -> None:
        """This rank has ``count`` of the batch's ``rows``, from ``first`` on; perhaps none."""
        self._first, self._count, self._rows = first, count, rows

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the context the model, or each member of an ensemble, takes its own rows' images
        and gives the logits of all rows; BatchNorm in train mode normalises over all of them."""
        try:
            for layer in self._norms:
                layer.forward = partial(self._normalised, layer)  # type: ignore[method-assign]
            for model in self._models:
                model.forward = partial(self._of_all, model.forward)
            yield
        finally:
            for module in (*self._norms, *self._models):
                module.__dict__.pop("forward", None)

    def _of_all(self, forward: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if len(images) != self._count:
            raise UserError(
                f"the loss gave the model {len(images)} rows of {self._count}; with several ranks "
                "it must give all of them; fit this model with one rank"
            )
        return _Gathered.apply(forward(images), self._first, self._rows, self._group)

    def _normalised(self, layer: AnyBatchNorm, x: Tensor) -> Tensor:
        if not layer.training:
            own: Any = type(layer).forward
            return own(layer, x)
        count = self._rows * x.shape[2:].numel()
        if len(x) != self._count or count < 2:
            raise ValueError(
                f"BatchNorm met {len(x)} rows of {self._count} and {count} values per channel; "
                "it needs a row for each sample, and two values"
            )
        channels = (1, -1, *[1] * (x.dim() - 2))
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = self._sum(_by_channel(values)) / count
        centred = values - mean.view(channels)
        variance = self._sum(_by_channel(centred.square())) / count
        _update(layer, mean.detach(), variance.detach() * (count / (count - 1)))
        normal = centred * (variance + layer.eps).rsqrt().view(channels)
        if layer.affine:
            normal = normal * layer.weight.view(channels) + layer.bias.view(channels)
        return normal.to(x.dtype)

    def _sum(self, x: Tensor) -> Tensor:
        return _Sum.apply(x, self._group)


def needs_whole_batch(model: nn.Module, loss: Loss) -> bool:
    """Whether the result would depend on the number of ranks if each saw its own rows alone.

    It would if the model has BatchNorm, or the loss states so by a true ``whole_batch``.
    """
    normalises = any(isinstance(module, AnyBatchNorm) for module in model.modules())
    return normalises or getattr(loss, "whole_batch", False)


class _Sum(torch.autograd.Function):
    """Sum over ranks; every rank's share gets the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        total = x.clone()
        group.sum(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        ctx.group.sum(total)
        return total, None


class _Gathered(torch.autograd.Function):
    """All ranks' rows. All ranks compute the same loss from them, each divided by the number of
    ranks, so the gradient of a rank's rows is its own times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, first: int, rows: int, group: Group) -> Tensor:
        ctx.own, ctx.size = slice(first, first + len(own)), group.size
        whole = own.new_zeros(rows, *own.shape[1:])
        whole[ctx.own] = own
        group.sum(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient[ctx.own] * ctx.size, None, None, None


def _by_channel(x: Tensor) -> Tensor:
    return x.sum([d for d in range(x.dim()) if d != 1])


def _update(layer: AnyBatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Updates running statistics as torch does."""
    if layer.running_mean is None or layer.running_var is None:
        return
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked += 1
    momentum = layer.momentum
    share = 1 / layer.num_batches_tracked.item() if momentum is None else momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), share)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), share)
