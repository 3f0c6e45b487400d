"""A model's layers in their order: its front up to one of them, and its head after it.

A layer, as FedD2S has it, is a convolution or a linear layer with what follows it up to the next:
activation, normalisation, pooling, dropout.
"""

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.common import state_sent

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Layers:
    """The layers of a model whose modules follow one another, ``features`` and then ``classifier``.

    They are found once, in a plain model, and hold for every model of its architecture: a cohort's
    too, whose modules are others under the same names.
    """

    names: tuple[str, ...]
    """C1, C2, ... for convolutions and F1, F2, ... for linear layers."""

    def __init__(self, model: nn.Module) -> None:
        """Finds the model's layers.

        Raises:
            UserError: its modules do not follow one another.
        """
        self._paths: list[list[str]] = []
        names: list[str] = []
        counts = {"C": 0, "F": 0}
        for path, module in _in_sequence(model):
            if isinstance(module, Convolution | nn.Linear):
                kind = "F" if isinstance(module, nn.Linear) else "C"
                counts[kind] += 1
                names.append(f"{kind}{counts[kind]}")
                self._paths.append([])
            if not self._paths:
                raise _refusal(model)
            self._paths[-1].append(path)
        self.names = tuple(names)
        inside = [
            [f"{path}.{name}" for path in paths for name in model.get_submodule(path).state_dict()]
            for paths in self._paths
        ]
        sent = state_sent(model)
        self._state_names = [[name for name in names if name in sent] for names in inside]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def flattening(self) -> int:
        """The number of layers before the first linear one: what FedD2S's paper splits after."""
        return sum(name.startswith("C") for name in self.names)

    def state_names(self, first: int, last: int) -> tuple[str, ...]:
        """Names of parameters and buffers of the layers from ``first`` to ``last``, counted from
        1."""
        return tuple(n for names in self._state_names[max(0, first - 1) : last] for n in names)

    def parameters(self, model: nn.Module, first: int, last: int) -> list[nn.Parameter]:
        """The trained parameters of a model's layers from ``first`` to ``last``; none of a
        cohort's, whose weights are its clients' models'."""
        paths = [path for paths in self._paths[max(0, first - 1) : last] for path in paths]
        found = (p for path in paths for p in model.get_submodule(path).parameters())
        return [p for p in found if p.requires_grad]  # weight decay would move a frozen one

    def forward(self, model: nn.Module, x: Tensor, first: int, last: int) -> Tensor:
        """What a model's layers from ``first`` to ``last`` make of ``x``, (B, ...): images, or what
        layer ``first - 1`` gave. It is ``x`` itself if there are none between."""
        for number in range(first, last + 1):
            if self.names[number - 1].startswith("F"):
                x = x.flatten(1)
            for path in self._paths[number - 1]:
                x = model.get_submodule(path)(x)
        return x

    @torch.no_grad()
    def outputs(
        self, model: nn.Module, x: Tensor, first: int, last: int, batch_size: int
    ) -> Tensor:
        """The same for many rows, frozen, so many at a time: a whole shard may not fit at once."""
        parts = [self.forward(model, part, first, last) for part in x.split(batch_size)]
        return torch.cat(parts)

    def check(self, number: int, setting: str, least: int = 0) -> None:
        """Raises `UserError` if there is no layer of that number; 0 stands for none of them."""
        if not least <= number <= len(self):
            raise UserError(
                f"{setting} must be in {least} to {len(self)} ({', '.join(self.names)}), "
                f"got {number}"
            )

    def check_name(self, name: str, setting: str) -> None:
        """Raises `UserError` if there is no layer of that name."""
        if name not in self.names:
            raise UserError(f"{setting} names no layer {name!r}; valid: {', '.join(self.names)}")


def _in_sequence(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The model's modules by path, in the order in which they run."""
    found = []
    for part in ("features", "classifier"):
        module = getattr(model, part, None)
        if isinstance(module, nn.Sequential):
            # A module that stands there twice, such as an activation, is run twice.
            inside = list(module.named_modules(prefix=part, remove_duplicate=False))
            found += inside[1:]  # the first is the sequence itself
        elif isinstance(module, nn.Linear):
            found.append((part, module))
        else:
            raise _refusal(model)
    if any(next(module.children(), None) is not None for _, module in found):
        raise _refusal(model)
    return found


def _refusal(model: nn.Module) -> UserError:
    return UserError(
        "a model whose layers follow one another is needed: its parts features and classifier, "
        "each an nn.Linear or an nn.Sequential of plain layers, as of m1, m2, cnn, convnet and "
        f"vgg9; got {type(model).__name__}"
    )
