"""Models of the user's own: any module class or factory becomes a classifier by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fl.errors import UserError
from fl.models.registry import register
from fl.models.shapes import ImageShape, ModelInfo
from fl.sources import source_hash

KNOWN = ("image_shape", "num_classes", "width")
"""What a factory may ask for, by the names of its parameters."""


@dataclass(frozen=True)
class Factory:
    """Calls the user's class or function with those of ``KNOWN`` that it names."""

    make: Callable[..., nn.Module]
    asked: tuple[str, ...]

    def __call__(self, image_shape: ImageShape, num_classes: int, width: float) -> nn.Module:
        """Raises `UserError` where what it makes is no module."""
        given = {"image_shape": image_shape, "num_classes": num_classes, "width": width}
        model = self.make(**{name: given[name] for name in self.asked})
        if not isinstance(model, nn.Module):
            raise UserError(
                f"expected a torch.nn.Module of {self.make}, got {type(model).__name__}"
            )
        return model


def register_model(name: str, make: Callable[..., nn.Module]) -> None:
    """Makes a classifier of the user's own known by a name, as for ``--classifier.model``.

    Args:
        name: letters, digits and ``. _ + -``; not one of Onefold's models.
        make: a `torch.nn.Module` class, or a function that makes one. Of ``image_shape`` (C, H, W),
            ``num_classes`` and ``width`` it gets those that it names as parameters. The module maps
            images (B, C, H, W) in [0, 1] to logits (B, num_classes).

    Raises:
        UserError: it cannot be called so, or the name is taken.
    """
    if isinstance(make, nn.Module):
        kind = type(make).__name__
        raise UserError(
            f"model {name}: expected the class or a function, got a {kind} that is made"
        )
    if not callable(make):
        raise UserError(
            f"model {name}: expected a torch.nn.Module class or a function that makes one, "
            f"got {type(make).__name__}"
        )
    register(
        ModelInfo(
            name,
            "classifier",
            Factory(make, _asked(name, make)),
            lambda image_shape: True,
            "no more",
            "a model of your own",
            source_hash(make),
        )
    )


def _asked(name: str, make: Callable[..., Any]) -> tuple[str, ...]:
    """Which of ``KNOWN`` are parameters; a parameter without a default must be one of them."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return ()
    for parameter in parameters.values():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if parameter.name not in KNOWN and not optional:
            raise UserError(
                f"model {name} needs {parameter.name}; it can be given {', '.join(KNOWN)}: "
                "give what else it needs a default"
            )
    return tuple(known for known in KNOWN if known in parameters)
