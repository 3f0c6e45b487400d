"""Dropout with masks that depend on the samples alone, not on the number of ranks."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.common import AnyDropout, forwards_replaced
from fl.seeding import seed_for
from kernels.backends import fuses
from kernels.dropout import MASK, drop, mix, numbers_of


def sample_keys(seed: int, purpose: str, epoch: int, rows: Tensor) -> Tensor:
    """(B,) int64 keys of the samples with row numbers ``rows`` (B,) in an epoch, 32 bits each."""
    return mix(rows ^ key_of_all(seed, purpose, epoch))


def key_of_all(seed: int, purpose: str, epoch: int) -> int:
    """What the keys of all samples have in common in an epoch, 32 bits."""
    return seed_for(seed, f"{purpose}/{epoch}") & MASK


class Masks:
    """The masks of one step: by sample, and another one for each dropout layer passed."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._passed = 0

    def start_step(self, keys: Tensor) -> None:
        """``keys`` (B,) of the samples that the model sees next."""
        self._keys, self._passed = keys, 0

    def drop(self, layer: nn.Dropout, x: Tensor) -> Tensor:
        """The output of ``layer`` for ``x`` (B, ...)."""
        if not layer.training or layer.p == 0:
            return x
        return drop(x, *self.next_of(x), layer.p)

    def next_of(self, x: Tensor) -> tuple[Tensor, int]:
        """The keys of the rows ``x`` (B, ...), and the stream of the next layer's masks."""
        keys, stream = self._keys, self._passed
        self._passed += 1
        if keys is None or len(keys) != len(x):
            raise ValueError(
                f"dropout met {len(x)} rows, and the step has {0 if keys is None else len(keys)} "
                "samples: a loss must pass the model one row for each sample"
            )
        return keys, stream


@contextmanager
def sample_dropout(model: nn.Module, *, fused: bool = False) -> Iterator[Masks]:
    """Inside the context the model's dropout layers take their masks from the result.

    ``fused``: it is of this package, and kernels may compute several of its layers together.

    Raises:
        UserError: the model has another kind of dropout than ``nn.Dropout``.
    """
    masks = Masks()
    layers = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            layers.append(module)
        elif isinstance(module, AnyDropout):
            raise UserError(f"masks by sample are for nn.Dropout, not {type(module).__name__}")
    own = {layer: partial(masks.drop, layer) for layer in layers}
    with forwards_replaced(own | (_fused(model, masks) if fused else {})):
        yield masks


# Layers that one kernel computes together, where there are such kernels.

Layer = Callable[[Tensor], Tensor]


def _fused(model: nn.Module, masks: Masks) -> dict[nn.Module, Layer]:
    """For each plain sequence of layers in a model of this package what computes it by fewer
    kernels; dropout takes its masks from ``masks``. Empty where no kernel can run."""
    if not fuses(next(model.parameters()).device):
        return {}
    plain = (module for module in model.modules() if type(module) is nn.Sequential)
    return {layers: partial(_through, _steps(layers, masks)) for layers in plain}


def _through(steps: Iterable[Layer], x: Tensor) -> Tensor:
    for step in steps:
        x = step(x)
    return x


def _steps(layers: nn.Sequential, masks: Masks) -> list[Layer]:
    """The layers, of which some are one step."""
    from kernels.triton_fused import pooled

    steps, rest = list[Layer](), list(layers)
    while rest:
        match rest:
            case [nn.Linear(bias=Tensor()) as linear, nn.ReLU(), nn.Dropout() as dropout, *after]:
                steps.append(partial(_hidden, linear, dropout, masks))
            case [nn.ReLU(), nn.MaxPool2d() as pool, *after] if _halves(pool):
                steps.append(pooled)
            case [layer, *after]:
                steps.append(layer)
        rest = after
    return steps


def _hidden(linear: nn.Linear, dropout: nn.Dropout, masks: Masks, x: Tensor) -> Tensor:
    """ReLU and dropout of a linear layer's output."""
    from kernels.triton_fused import hidden

    if not dropout.training or dropout.p == 0 or x.dim() != 2:
        return masks.drop(dropout, linear(x).relu())
    keys, stream = masks.next_of(x)
    return hidden(F.linear(x, linear.weight), linear.bias, keys, *numbers_of(stream, dropout.p))


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether a pooling takes the maxima of squares of two and no more."""
    settings = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return settings == (2, 2, 0, 1) and not pool.ceil_mode and not pool.return_indices
