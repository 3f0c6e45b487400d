"""What ranks exchange in a step: gradients; of wide layers what enters and leaves them instead."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fl.federation import Loss
from fl.fusion.columns import Columns
from fl.fusion.group import Group


class Gradients:
    """Gives the parameters of a rank's model the gradients of the whole batch."""

    def __init__(self, model: nn.Module, loss: Loss, batch_size: int, group: Group) -> None:
        """``batch_size``: samples of a whole batch, at most.

        Losses with a true ``one_pass`` call the model once in a step, with one row for each
        sample; only for those are wide layers dealt out.
        """
        self._group = group
        dealt = group.size > 1 and getattr(loss, "one_pass", False)
        layers = wide_layers(model, batch_size) if dealt else []
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.columns = Columns(parameters, layers, group)
        if group.size == 1:
            return
        self._everywhere = [p for p in parameters if id(p) not in self.columns.parts]
        sizes = [p.numel() for p in self._everywhere]
        # The loss travels along, in the last element.
        self._flat = parameters[0].new_zeros(sum(sizes) + 1, requires_grad=False)
        *parts, self._loss = self._flat.split([*sizes, 1])
        self._views = [
            part.as_strided(p.shape, p.stride())
            for part, p in zip(parts, self._everywhere, strict=True)
        ]

    @property
    def parameters(self) -> Sequence[Tensor]:
        """What is to be stepped on this rank."""
        return self.columns.parameters

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts wide layers are computed by all ranks together."""
        with self.columns.watching():
            yield

    def start_step(self, count: int, most: int) -> None:
        """The model sees ``count`` rows on this rank, and on none more than ``most``."""
        if self._group.size > 1:
            self._flat.zero_()
            self.columns.start_step(count, most)

    def sum(self, loss: Tensor) -> Tensor:
        """Sets the gradients, summed over the ranks; returns the loss summed over them."""
        if self._group.size == 1:
            return loss
        for parameter, view in zip(self._everywhere, self._views, strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view
        self._loss.copy_(loss)
        self._group.sum(self._flat)
        return self._loss.clone().squeeze(0)

    def clip(self, models: Sequence[nn.Module], norm: float) -> None:
        """Cuts the gradient of each of the models to that norm, as torch's clip_grad_norm_."""
        for model in models:
            whole = list(model.parameters())
            everywhere = [p.grad for p in whole if p.grad is not None]
            parts = [self.columns.parts[id(p)] for p in whole if id(p) in self.columns.parts]
            own = [p.grad for p in parts if p.grad is not None]
            squares = _square_sum(own, like=whole[0])
            if parts:
                self._group.sum(squares)
            length = (squares + _square_sum(everywhere, like=whole[0])).sqrt()
            torch._foreach_mul_(everywhere + own, (norm / (length + 1e-6)).clamp(max=1.0))


def wide_layers(model: nn.Module, batch_size: int) -> list[nn.Linear]:
    """Fully connected layers of whose gradient what enters and leaves is a small part."""
    return [
        m
        for m in model.modules()
        if type(m) is nn.Linear
        and m.weight.requires_grad
        and batch_size * (m.in_features + m.out_features) < m.weight.numel()
    ]


def _square_sum(tensors: list[Tensor], like: Tensor) -> Tensor:
    norms = torch._foreach_norm(tensors) if tensors else [like.new_zeros(())]
    return torch.stack(norms).square().sum()
