"""Whether ranks may each take a slice of every batch; BatchNorm and losses over whole batches.

BatchNorm normalises by the statistics of all rows, and some losses are no mean over rows. So ranks
sum BatchNorm's statistics, forwards and backwards, and exchange the rows' logits, from which each
computes the whole batch's loss. Both are small beside the gradients that ranks exchange.

Code of users may do more: normalise by hand, draw random numbers, weight a mean. What is not known
to give the same on slices, each rank computes on whole batches, as one rank does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.fusion.group import Group
from fl.models.common import AnyBatchNorm, forwards_replaced
from fl.models.ensemble import Ensemble
from fl.models.registry import copied, holds_own
from fl.seeding import stream_states, streams_restored
from fl.server import Loss
from fl.training.masks import sample_dropout


class WholeBatch:
    """Makes a model on one rank compute on its slice of a batch as with the whole batch."""

    def __init__(self, model: nn.Module, group: Group) -> None:
        self._group = group
        self._norms = norms_of(model)
        self._models = members_of(model)

    def start_step(self, first: int, count: int, rows: int) -> None:
        """This rank has ``count`` of the batch's ``rows``, from ``first`` on; perhaps none, or, as
        all ranks then, all."""
        self._first, self._count, self._rows = first, count, rows
        self._summing = Group() if count == rows else self._group

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the context the model, or each member of an ensemble, takes its own rows' images
        and gives the logits of all rows; BatchNorm in train mode normalises over all of them."""
        own: dict[nn.Module, Callable[..., Tensor]]
        own = {layer: partial(self._normalised, layer) for layer in self._norms}
        own |= {model: partial(self._of_all, model.forward) for model in self._models}
        with forwards_replaced(own):
            yield

    def _of_all(self, forward: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        if len(images) != self._count:
            raise UserError(
                f"the loss passed the model {len(images)} rows of {self._count}: with several "
                "ranks it must pass all of them; use one rank for this model"
            )
        return _Gathered.apply(forward(images), self._first, self._rows, self._summing)

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
        return _Sum.apply(x, self._summing)


def needs_whole_batch(model: nn.Module, loss: Loss) -> bool:
    """Whether the result would depend on the number of ranks if each saw its own rows alone.

    It would if the model has BatchNorm, or the loss states so by a true ``whole_batch``.
    """
    return bool(norms_of(model)) or getattr(_unwrapped(loss), "whole_batch", False)


def norms_of(model: nn.Module) -> list[AnyBatchNorm]:
    """The model's BatchNorm layers that compute as torch's do."""
    ways = {nn.BatchNorm1d.forward, nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward}
    return [
        module
        for module in model.modules()
        if isinstance(module, AnyBatchNorm) and type(module).forward in ways
    ]


def members_of(model: nn.Module) -> list[nn.Module]:
    """The members of an ensemble; of another model itself."""
    return list(model.members) if isinstance(model, Ensemble) else [model]


def is_our_model(model: nn.Module) -> bool:
    """Whether the model, or each member, is of this package."""
    return not holds_own(model) and all(_is_ours(type(member)) for member in members_of(model))


def is_our_loss(loss: Loss) -> bool:
    """Whether the loss is of this package: then it is a mean over samples, or says if it is not."""
    own = _unwrapped(loss)
    return _is_ours(own) or _is_ours(type(own))


def says_what_it_is(loss: Loss) -> bool:
    """Whether a loss is known to be a mean over samples, or to be none."""
    return is_our_loss(loss) or hasattr(_unwrapped(loss), "whole_batch")


def _unwrapped(loss: Any) -> Any:
    while isinstance(loss, partial):
        loss = loss.func
    return loss


def _is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "fl"


@torch.no_grad()
def keeps_rows_apart(model: nn.Module, images: Tensor) -> bool:
    """Whether a user's model answers each of some rows alike whatever the others are, BatchNorm and
    dropout aside, and does nothing else in training but that. A copy is tried, on all rows and on
    about half of them: of a batch, as it may mix rows in groups."""
    trial, count = copied(model).train(), len(images)
    buffers, streams = [b.clone() for b in trial.buffers()], stream_states()

    def answers(rows: int) -> Tensor:
        def passed(x: Tensor) -> Tensor:
            if len(x) != rows:
                raise ValueError("BatchNorm normalises other rows than the batch's")
            return x

        masks.start_step(torch.arange(rows, device=images.device))
        with forwards_replaced(dict.fromkeys(norms_of(trial), passed)):
            found: Tensor = trial(images[:rows])
        return found

    # What fails here fails in training too, or does not on whole batches.
    with suppress(Exception), streams_restored(), sample_dropout(trial) as masks:
        whole, part = answers(count), answers(half := (count // 2) | 1)
        if streams != stream_states() or not all(map(torch.equal, buffers, trial.buffers())):
            return False
        return torch.allclose(whole[:half], part, rtol=1e-3, atol=1e-4)
    return False


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
