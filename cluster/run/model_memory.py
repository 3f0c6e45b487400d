"""Refuses models that main memory cannot hold, before one is built."""

import os

import torch

from fl.errors import UserError
from fl.federation import RunSpec, Training
from fl.models.registry import CLASSIFIERS, GENERATORS, MODELS, build_generator, build_shell
from fl.report.words import size


def refuse_large(training: Training, run_spec: RunSpec) -> None:
    """Refuses a client's model whose weights alone exceed the machine's main memory.

    Raises:
        UserError: names the model, its size and the memory.
    """
    name, width = training.model, getattr(training, "width", 1.0)
    known = MODELS.get(name)
    if known is None or known.source:  # one of the user's is built as it is, on one step
        return
    needed, there = _bytes(training, run_spec), main_memory()
    if needed > there:
        raise UserError(
            f"{name} with width {width:g} has {size(needed)} of weights, this machine has "
            f"{size(there)} of memory: lower width"
        )


def main_memory() -> int:
    """Bytes of main memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _bytes(training: Training, run_spec: RunSpec) -> int:
    """Of the model's weights and buffers; it is built without memory for them."""
    name, shape, classes = training.model, run_spec.image_shape, run_spec.num_classes
    width = getattr(training, "width", 1.0)
    if name in CLASSIFIERS:
        model = build_shell(name, shape, classes, width=width)
    elif name in GENERATORS:
        with torch.device("meta"):
            latent = getattr(training, "latent", 20)
            model = build_generator(name, shape, classes, latent=latent, width=width)
    else:
        return 0
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())
