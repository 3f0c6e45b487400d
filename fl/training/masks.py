"""Dropout with masks that depend on the samples alone, not on the number of ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from fl.errors import UserError
from fl.models.shapes import AnyDropout, forwards_replaced
from fl.seeding import seed_for
from kernels.dropout import MASK, drop, mix


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
        keys, stream = self._keys, self._passed
        self._passed += 1
        if keys is None or len(keys) != len(x):
            raise ValueError(
                f"dropout met {len(x)} rows, and the step has {0 if keys is None else len(keys)} "
                "samples: a loss must pass the model one row for each sample"
            )
        return drop(x, keys, stream, layer.p)


@contextmanager
def sample_dropout(model: nn.Module) -> Iterator[Masks]:
    """Inside the context the model's dropout layers take their masks from the result.

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
    with forwards_replaced({layer: partial(masks.drop, layer) for layer in layers}):
        yield masks
