"""A model's copy, at the price of copying its numbers."""

from typing import Any

from torch import Tensor, nn

from fl.models.torch_internals import Model, shell


def copied(model: Model) -> Model:
    """A copy with weights and buffers of its own, of a model whose layers share none.

    As `copy.deepcopy`, without looking for what it has copied already: thousands of small clients
    start from one model.
    """
    twins: dict[str, Any] = {}
    for path, layer in model.named_modules(remove_duplicate=False):
        twins[path] = twin = shell(layer)
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            setattr(twin, name, _parameter(parameter))
        for name, buffer in layer.named_buffers(recurse=False, remove_duplicate=False):
            setattr(twin, name, buffer.clone())
        above, _, name = path.rpartition(".")
        if path:
            setattr(twins[above], name, twin)
    whole: Model = twins[""]
    return whole


def _parameter(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
