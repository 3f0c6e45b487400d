"""Whether a model of the user's own gives what a classifier has to give."""

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.models.shapes import ImageShape


def check_output(name: str, model: nn.Module, image_shape: ImageShape, num_classes: int) -> None:
    """Refuses a model that does not map images of that shape to a logit for each class.

    Raises:
        UserError: with what it gave, or how it failed.
    """
    state = torch.random.get_rng_state()
    try:
        with torch.no_grad():
            found = model.eval()(torch.zeros(2, *image_shape))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        shape = (2, *image_shape)
        raise UserError(f"model {name} fails on images of shape {shape}: {reason}") from None
    finally:
        torch.random.set_rng_state(state)
    given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if given != (2, num_classes):
        raise UserError(
            f"model {name} gives {given} for images of shape {(2, *image_shape)}, "
            f"expected {(2, num_classes)}: a logit for each class"
        )
