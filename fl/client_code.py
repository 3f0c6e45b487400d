"""The code that decides what a client uploads, as digests: no upload of another is taken for its.

Of our source and of users' code it is a hash. Of a model of the user's own that does not say all: a
closure, a global, a helper in another file or a file of weights may have changed while the class
that reads it has not. So its starting weights are hashed too, and what the model answers and which
gradients it has on images at random.
"""

import hashlib
import logging
import secrets
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from fl import PACKAGES
from fl.federation import RunSpec, Task, Training
from fl.models.common import ModelInfo
from fl.models.registry import MODELS
from fl.process import threads
from fl.seeding import seeded
from fl.sources import code_of, defined, home, is_users, key_of
from fl.training.classifier import start
from fl.training.losses import example_targets, losses_of, tried_losses

SHARED = (
    *("fl.condensation", "fl.data.shard", "fl.models", "fl.seeding", "fl.torch_internals"),
    *("fl.training", "kernels"),
)
"""Modules and packages of Onefold on which all tasks depend."""


def client_code(task: Task, training: Training) -> str:
    """A hash of all code on which a client's upload depends.

    That is Onefold's shared source, and of the task, of the training record and of the record's own
    task the code with all values that it refers to (:func:`fl.sources.key_of`), or the source where
    Onefold or an installed package has them; and the user's own model.
    """
    digest = hashlib.sha256(_shared().encode())
    things = (type(training), training.task, task)
    modules = {home(defined(thing)) for thing in things}
    for file in sorted({file for name in modules for file in _installed_files(name)}):
        digest.update(file.read_bytes())
    digest.update(key_of(things, f"uploads of {defined(task).__qualname__}").encode())
    if (info := MODELS.get(training.model)) and info.source:
        # As it is now: what its code refers to may have changed since it was registered.
        digest.update(code_of(info.build).digest.encode())
    return digest.hexdigest()


def _installed_files(module: str) -> list[Path]:
    """The file of a module of Onefold that is not shared, or all of an installed package."""
    if is_users(module) or module.startswith(SHARED):
        return []
    top = module.partition(".")[0]
    return _files(module if top in PACKAGES else top)


@cache
def _shared() -> str:
    """Hash of the source of the modules in ``SHARED``."""
    digest = hashlib.sha256()
    for source in shared_files():
        digest.update(source.read_bytes())
    return digest.hexdigest()


def shared_files() -> list[Path]:
    """The files of the modules in ``SHARED``, of packages with all that is below them."""
    found = (file for name in SHARED for file in _files(name))
    return [file for file in found if file.name != "__main__.py"]


def _files(name: str) -> list[Path]:
    """A module's file, or all below a package's folders; found without importing a module of ours,
    since some imports take seconds."""
    spec = find_spec(name)
    assert spec is not None
    folders = spec.submodule_search_locations
    if folders is None:
        return [Path(str(spec.origin))]
    return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))


IMAGES = 6
STEPS = 3
"""Of plain gradient descent, after each of which the model is asked again."""

log = logging.getLogger(__name__)


def behaviour(info: ModelInfo, width: float, run_spec: RunSpec) -> str:
    """The digest of the model's start, and of its first steps.

    Where the model cannot be asked so, the digest is another each time, and one line says why: no
    upload of it is then reused by a later run.
    """
    try:
        with threads(1), torch.enable_grad(), seeded(0, "behaviour"):
            return _digest(start(info, width, run_spec), run_spec)
    except (Exception, SystemExit) as error:  # the code is the user's
        log.warning(
            "uploads of %s are not reused by later runs: what it does is unknown: %s: %s",
            *(info.name, type(error).__name__, error),
        )
        return secrets.token_hex(32)


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
