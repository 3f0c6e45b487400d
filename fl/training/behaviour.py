"""What a model of the user's own is and does, as a digest: no upload of another is taken for its.

The source alone does not say it: a closure, a global, a helper in another file or a file of weights
may have changed while the class that reads it has not. So the starting weights are hashed, and what
the model answers and which gradients it has on images at random.
"""

import hashlib
import logging
import secrets

import torch
from torch import nn

from fl.federation import RunSpec
from fl.models.shapes import ModelInfo
from fl.seeding import seeded
from fl.training.classifier import start
from fl.training.losses import example_targets, losses_of, tried_losses

IMAGES = 6
STEPS = 3
"""Of plain gradient descent, after each of which the model is asked again."""

log = logging.getLogger(__name__)


def behaviour(info: ModelInfo, width: float, run_spec: RunSpec) -> str:
    """The digest of the model's start, and of its first steps.

    Where the model cannot be asked so, the digest is another each time, and one line says why: no
    upload of it is then reused by a later run.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over another number of threads round differently
    try:
        with torch.enable_grad(), seeded(0, "behaviour"):
            return _digest(start(info, width, run_spec), run_spec)
    except (Exception, SystemExit) as error:  # the code is the user's
        log.warning(
            "uploads of %s are not reused by later runs: what it does is unknown: %s: %s",
            *(info.name, type(error).__name__, error),
        )
        return secrets.token_hex(32)
    finally:
        torch.set_num_threads(threads)


def _digest(model: nn.Module, run_spec: RunSpec) -> str:
    digest = hashlib.sha256()
    images, labels = run_spec.inputs.draw(IMAGES), example_targets(run_spec, IMAGES)
    own, batch = losses_of(run_spec, model), {"images": images, "labels": labels}
    parameters = [p for p in model.parameters() if p.requires_grad]

    def add(*tensors: torch.Tensor) -> None:
        for tensor in tensors:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype} ".encode())
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)

    add(tried_losses(model, own, run_spec)[0])  # of all classes
    add(*model.state_dict().values())
    for _ in range(STEPS):
        loss = own(model.train(), batch).mean()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        add(model(images), *(g for g in gradients if g is not None))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(0.1 * gradient)
            add(model.eval()(images))
    add(*model.state_dict().values())
    return digest.hexdigest()
