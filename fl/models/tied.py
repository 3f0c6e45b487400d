"""VGG-9's first fully connected layer without its copies: the same model, trained with less work.

VGG-9 enlarges the map that its convolutions leave to 7 x 7 pixels (from 3 x 3 for MNIST, from 1 x 1
for images of 8 x 8), by windows of which some are equal. The weights behind equal pixels of a
channel have the same gradient in every step, so SGD and Adam move them by the same amount. Here
they are one weight, their mean, with a pixel that counts as often: 25 of 49 for MNIST, 1 of 49 for
8 x 8. That is the same training but for rounding, with as much less to multiply, to sum up over
ranks and to update. At the end each weight is its start plus what its mean has moved.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.models.architectures.vgg import POOLED, VGG9

LAYER = "classifier.1"
"""The layer whose weights are tied, in a VGG-9."""


class Tied:
    """A model whose weights with equal gradients are tied, until :meth:`undo`.

    Its parameters stay the same objects; those that are tied have another shape meanwhile, in the
    model's state too (but see :meth:`whole`).

    Args:
        model: with any number of VGG-9s in it; others are left as they are.
        when: whether to tie anything.
    """

    def __init__(self, model: nn.Module, *, when: bool = True) -> None:
        self._model = model
        self._parts = {
            f"{path}.{LAYER}.weight".removeprefix("."): _Part(module)
            for path, module in model.named_modules()
            if when and isinstance(module, VGG9) and _windows(module.map_shape).have_copies
        }

    def scale_gradients(self) -> None:
        """Makes each gradient that of one of the weights that are tied: to be called between the
        backward pass (and a sum over ranks) and the optimiser's step."""
        for part in self._parts.values():
            part.scale_gradient()

    @property
    def weights(self) -> list[Tensor]:
        """The tied weights as they are, or were when that was undone."""
        return [part.tied for part in self._parts.values()]

    def whole(self) -> dict[str, Tensor]:
        """The model's state with its own weights, moved as the tied ones have."""
        own = {name: part.whole() for name, part in self._parts.items()}
        return {**self._model.state_dict(), **own}

    def load(self, whole: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        """Sets the model to what :meth:`whole` gave, with what :attr:`weights` was then."""
        own = dict(zip(self._parts, weights, strict=True))
        self._model.load_state_dict({**whole, **own})

    def undo(self) -> None:
        """Gives the model its own weights again, each moved as its tied one has."""
        for part in self._parts.values():
            part.undo()


@contextmanager
def tied(model: nn.Module, *, when: bool = True) -> Iterator[Tied]:
    """Inside the context the model is tied: see :class:`Tied`."""
    own = Tied(model, when=when)
    try:
        yield own
    finally:
        own.undo()


@dataclass(frozen=True)
class _Windows:
    """The windows by which a map becomes 7 x 7 pixels, without those that are there already."""

    index: Tensor
    """Of each pixel, (49,): its number among those that differ."""
    counts: Tensor
    """Pixels that are equal to each of those that differ, (D,)."""
    down: Tensor
    """Of the map's rows, (differing rows, h): means over windows, each times its copies."""
    across: Tensor
    """The same of its columns, (differing columns, w)."""

    @property
    def have_copies(self) -> bool:
        """Whether any pixel is equal to another."""
        return len(self.counts) < len(self.index)

    @property
    def share(self) -> Tensor:
        """The part of each pixel in the mean over its copies, (49, D)."""
        return F.one_hot(self.index) / self.counts


@lru_cache
def _windows(map_shape: tuple[int, int]) -> _Windows:
    (rows, down), (columns, across) = (_cut(side) for side in map_shape)
    index = (len(across) * rows.unsqueeze(1) + columns).flatten()
    return _Windows(index, index.bincount().float(), down, across)


def _cut(side: int) -> tuple[Tensor, Tensor]:
    """Which window each of the 7 pixels of a side has, (7,), and the windows' means, each times the
    number of pixels that have it, (windows, side)."""
    spans = [(i * side // POOLED, -(-(i + 1) * side // POOLED)) for i in range(POOLED)]
    means = {span: torch.zeros(side) for span in spans}
    for first, end in spans:
        means[first, end][first:end] += 1 / (end - first)
    order = list(means)
    return torch.tensor([order.index(span) for span in spans]), torch.stack(list(means.values()))


class _Part:
    """One VGG-9's pooling and first fully connected layer, tied."""

    def __init__(self, vgg: VGG9) -> None:
        layer = vgg.get_submodule(LAYER)
        assert isinstance(layer, nn.Linear)
        self._pool, self._layer = vgg.features[-1], layer
        self._windows = _windows(vgg.map_shape)
        self._start = layer.weight.detach()
        pixels = self._start.unflatten(1, (-1, POOLED**2))
        self._mean = (pixels @ self._windows.share.to(pixels)).flatten(1)
        self._counts = self._windows.counts.to(pixels).repeat(pixels.shape[1])
        self._index = self._windows.index.to(pixels.device)
        self._put(self._mean.clone())
        self.tied: Tensor = layer.weight
        down, across = self._windows.down.to(pixels), self._windows.across.to(pixels)
        self._pool.forward = partial(_enlarged, down, across.t())

    def scale_gradient(self) -> None:
        if self.tied.grad is not None:
            self.tied.grad.div_(self._counts)

    def whole(self) -> Tensor:
        if torch.equal(self.tied, self._mean):
            return self._start
        moved = (self.tied.detach() - self._mean).unflatten(1, (-1, len(self._windows.counts)))
        return self._start + moved.index_select(2, self._index).flatten(1)

    def undo(self) -> None:
        if self._pool.__dict__.pop("forward", None):
            self.tied = self.tied.detach()
            self._put(self.whole())

    def _put(self, weight: Tensor) -> None:
        self._layer.weight.data, self._layer.weight.grad = weight, None
        self._layer.in_features = weight.shape[1]


def _enlarged(down: Tensor, across: Tensor, maps: Tensor) -> Tensor:
    """Maps (B, C, h, w) as (B, C, D) pixels that differ, each times the number of its copies."""
    return (down @ maps @ across).flatten(2)
