"""Internals of torch that models use, which may change with any release: a module's dicts.

``nn.Module`` has its weights, buffers, layers and hooks in dicts among its attributes. Torch
offers no copy that shares the weights: `copy.copy` shares those dicts, so a layer exchanged in the
copy would be exchanged in the original too, and `copy.deepcopy` copies every number.
"""

from typing import TypeVar

from torch import nn

TESTED_WITH = "2.14.1"
"""The version that tests/fl/models/test_torch_internals.py last checked this file with."""

Model = TypeVar("Model", bound=nn.Module)


def shell(model: Model) -> Model:
    """A module with the same weights, buffers and layers, which can be exchanged in it alone."""
    twin = model.__class__.__new__(model.__class__)
    # Lists too: a recurrent layer has a second list of its weights.
    own = {n: v.copy() if isinstance(v, dict | list) else v for n, v in vars(model).items()}
    twin.__dict__ = own
    return twin
