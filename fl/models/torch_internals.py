"""What models use of torch that torch does not promise to keep: where a module has what is in it.

``nn.Module`` keeps its weights, buffers, layers and hooks in dicts among its attributes. Torch
offers no copy that shares the weights: `copy.copy` shares those dicts, so a layer exchanged in the
copy would be exchanged in the original too, and `copy.deepcopy` copies every number.
"""

from typing import TypeVar

from torch import nn

TESTED_WITH = "2.14.1"
"""The torch that tests/fl/models/test_torch_internals.py last held against this file."""

Model = TypeVar("Model", bound=nn.Module)


def shell(model: Model) -> Model:
    """The same weights, buffers and layers in a module whose own can be exchanged for others."""
    twin = model.__class__.__new__(model.__class__)
    # A recurrent layer has its weights once more, in a list.
    own = {n: v.copy() if isinstance(v, dict | list) else v for n, v in vars(model).items()}
    twin.__dict__ = own
    return twin
