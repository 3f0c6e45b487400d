"""Whether a model of the user's own gives what a classifier has to give."""

from functools import lru_cache

import torch
from torch import Tensor

from fl.errors import UserError, reason_of
from fl.models.info import ModelInfo
from fl.models.shapes import ImageShape
from fl.models.state import refusal


@lru_cache(maxsize=64)
def check_output(info: ModelInfo, image_shape: ImageShape, num_classes: int, width: float) -> None:
    """Refuses a model that does not map images of that shape to a logit for each class.

    It is tried once in a process, and draws nothing from torch's global stream: weights drawn after
    it are the same whether it was tried or not.

    Raises:
        UserError: with what it gave, or how it failed.
    """
    shape = (2, *image_shape)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            model = info.build(image_shape, num_classes, width).eval()
            found = model(torch.zeros(shape))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(
                f"model {info.name} fails on images of shape {shape}: {type(error).__name__}: "
                f"{reason_of(error)}"
            ) from None
    given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if given != (2, num_classes):
        raise UserError(
            f"model {info.name} gives {given} for images of shape {shape}, "
            f"expected {(2, num_classes)}: a logit for each class"
        )
    if refused := refusal(model):
        raise UserError(f"model {info.name} cannot be trained: {refused}")
