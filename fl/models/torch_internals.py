"""Internals of torch that models use, which may change with any release: a module's dicts.

With them a model is copied with little more work than copying its weights and buffers.

``nn.Module`` has its weights, buffers, layers and hooks in dicts among its attributes. Torch
offers no copy that shares the weights: `copy.copy` shares those dicts, so a layer exchanged in the
copy would be exchanged in the original too, and `copy.deepcopy` copies every number.
"""

import copy
from typing import Any, TypeVar

from torch import Tensor, nn

from fl.models.registry import holds_own

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


def copied(model: Model) -> Model:
    """A copy with weights and buffers of its own.

    Like `copy.deepcopy`, but faster for Onefold's models, which share no layers and no weights:
    thousands of small clients start from copies of one model.
    """
    if holds_own(model):
        return copy.deepcopy(model, _without_graph(model))
    twins: dict[str, Any] = {}
    for path, layer in model.named_modules(remove_duplicate=False):
        twins[path] = twin = shell(layer)
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            own = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            setattr(twin, name, own)
        for name, buffer in layer.named_buffers(recurse=False, remove_duplicate=False):
            setattr(twin, name, buffer.clone())
        above, _, name = path.rpartition(".")
        if path:
            setattr(twins[above], name, twin)
    whole: Model = twins[""]
    return whole


def _without_graph(model: nn.Module) -> dict[int, Any]:
    """Copies, for `copy.deepcopy`, of tensors that a forward pass left with a graph, which it
    refuses."""
    attributes = (value for layer in model.modules() for value in vars(layer).values())
    tensors = (t for t in attributes if isinstance(t, Tensor) and not t.is_leaf)
    return {id(tensor): tensor.detach().clone() for tensor in tensors}
