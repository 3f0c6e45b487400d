"""VGG-9's first fully connected layer in fewer weights: the same model and training, less work.

VGG-9 enlarges the map that its convolutions leave, 3 x 3 pixels for MNIST, to 7 x 7 by means over
windows: x becomes U x, where U has 49 rows and 9 columns. So the layer W's gradient has 9 degrees
of freedom for each channel, not 49, and an optimiser moves W by these alone. With less to multiply,
to sum up over ranks and to update the same is done by V in place of W:

- SGD, with momentum: U = Q R, Q's columns orthonormal. V = W Q sees R x, its gradient is that of W
  times Q, and W moves by what V moves times Q^T.
- Adam, whose step depends on each number alone: weights behind equal pixels (24 of MNIST's 49 equal
  another) have the same gradient, and move alike. V is their mean, and sees a pixel that counts as
  often as it is there; V's gradient over that number is each one's.

Both are the same training but for rounding. In the end W is its start plus what V has moved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.models.architectures.plain import POOLED, VGG9
from fl.training.optimizers import Adam, AnyOptimizer, Paced, innermost
from kernels.backends import fuses

LAYER = "classifier.1"
"""The layer W, in a VGG-9."""


class Reduced:
    """A model whose VGG-9s have V in place of W, inside a context or until :meth:`undo`.

    Parameters stay the same objects; W has V's shape meanwhile, in the model's state too (but see
    :meth:`whole`).

    Args:
        model: with any number of VGG-9s in it; others are left as they are.
        optimizer: by which it is trained. None: by none, it only answers.
        when: whether to reduce anything. With weight decay, which moves W in all directions, or
            a norm of all gradients, nothing is.
    """

    def __init__(
        self, model: nn.Module, optimizer: AnyOptimizer | None = None, *, when: bool = True
    ) -> None:
        settings = None if optimizer is None else innermost(optimizer)
        by_number = isinstance(settings, Adam)
        differs = isinstance(settings, Paced) or bool(settings and settings.weight_decay)
        self._model = model
        self._parts = {
            f"{path}.{LAYER}.weight".removeprefix("."): _Part(module, form)
            for path, module in model.named_modules()
            if when and not differs and isinstance(module, VGG9)
            if len((form := _form(module.map_shape, by_number)).counts) < POOLED**2
        }

    def scale_gradients(self) -> None:
        """Makes V's gradients those of W's: to be called between the backward pass (and a sum over
        ranks) and the optimiser's step."""
        for part in self._parts.values():
            part.scale_gradient()

    @property
    def weights(self) -> list[Tensor]:
        """Each V as it is, or was when that was undone."""
        return [part.reduced for part in self._parts.values()]

    def whole(self) -> dict[str, Tensor]:
        """The model's state, with each W as far as it has moved."""
        own = {name: part.whole() for name, part in self._parts.items()}
        return {**self._model.state_dict(), **own}

    def load(self, whole: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        """Sets the model to what :meth:`whole` gave, with what :attr:`weights` was then."""
        own = dict(zip(self._parts, weights, strict=True))
        self._model.load_state_dict({**whole, **own})

    def undo(self) -> None:
        """Gives the model each W again."""
        for part in self._parts.values():
            part.undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


@dataclass(frozen=True)
class _Form:
    """How W becomes V, for maps of h x w; of one side while it is made."""

    to: Tensor
    """V = W to, (pixels, numbers), for each channel."""
    back: Tensor
    """W moves by what V moves times this, (numbers, pixels)."""
    counts: Tensor
    """V's gradient over these is W's, (numbers,)."""
    pools: tuple[Tensor, ...]
    """What V sees of a map: the first @ map @ the second's transpose."""


@lru_cache
def _form(map_shape: tuple[int, int], by_number: bool) -> _Form:
    side = _copies if by_number else _orthonormal
    rows, columns = (side(_windows(length)) for length in map_shape)
    return _Form(
        to=_of_both(rows.to, columns.to),
        back=_of_both(rows.back, columns.back),
        counts=torch.outer(rows.counts, columns.counts).flatten(),
        pools=(*rows.pools, *columns.pools),
    )


def _of_both(rows: Tensor, columns: Tensor) -> Tensor:
    """The Kronecker product, also of layouts that torch.kron refuses."""
    product = rows[:, None, :, None] * columns[None, :, None, :]
    return product.flatten(2).flatten(0, 1)


def _windows(length: int) -> Tensor:
    """U for one side of a map: row i has the mean over the window that pixel i of 7 has."""
    eye = torch.eye(length, dtype=torch.float64)
    return F.adaptive_avg_pool1d(eye, POOLED).t()


def _orthonormal(windows: Tensor) -> _Form:
    q, r = torch.linalg.qr(windows)
    return _Form(to=q, back=q.t(), counts=torch.ones(len(r), dtype=r.dtype), pools=(r,))


def _copies(windows: Tensor) -> _Form:
    kinds, index, counts = windows.unique(dim=0, return_inverse=True, return_counts=True)
    counts = counts.to(windows)
    copies = F.one_hot(index).to(windows)
    pools = (kinds * counts.unsqueeze(1),)
    return _Form(to=copies / counts, back=copies.t(), counts=counts, pools=pools)


class _Part:
    """One VGG-9's pooling and layer, reduced."""

    def __init__(self, vgg: VGG9, form: _Form) -> None:
        layer = vgg.get_submodule(LAYER)
        assert isinstance(layer, nn.Linear)
        self._pool, self._layer, self._form = vgg.features[-1], layer, form
        self._start = layer.weight.detach()
        pixels = self._start.unflatten(1, (-1, POOLED**2))
        self._reduced_start = (pixels @ form.to.to(pixels)).flatten(1)
        self._counts = form.counts.to(pixels).repeat(pixels.shape[1])
        self._scales = bool((form.counts != 1).any())
        self._put(self._reduced_start.clone())
        self.reduced: Tensor = layer.weight
        down, across = (pool.to(pixels) for pool in form.pools)
        self._pool.forward = partial(_seen, down, across.t())
        if fuses(pixels.device):
            self._pool.forward = partial(_seen_at_once, _of_both(down, across).t())

    def scale_gradient(self) -> None:
        if self._scales and self.reduced.grad is not None:
            self.reduced.grad.div_(self._counts)

    def whole(self) -> Tensor:
        if torch.equal(self.reduced, self._reduced_start):
            return self._start
        moved = self.reduced.detach() - self._reduced_start
        pixels = moved.unflatten(1, (-1, len(self._form.counts))) @ self._form.back.to(moved)
        return self._start + pixels.flatten(1)

    def undo(self) -> None:
        if self._pool.__dict__.pop("forward", None):
            self.reduced = self.reduced.detach()
            self._put(self.whole())

    def _put(self, weight: Tensor) -> None:
        self._layer.weight.data, self._layer.weight.grad = weight, None
        self._layer.in_features = weight.shape[1]


def _seen(down: Tensor, across: Tensor, maps: Tensor) -> Tensor:
    """What V sees of maps (B, C, h, w): (B, C, numbers)."""
    return (down @ maps @ across).flatten(2)


def _seen_at_once(both: Tensor, maps: Tensor) -> Tensor:
    """The same by one product, whatever the maps' layout, which rounds otherwise."""
    return torch.bmm(maps.flatten(2), both.expand(len(maps), -1, -1))
