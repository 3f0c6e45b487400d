"""Fast copies of a model: little more work than copying its weights and buffers."""

from typing import Any

from torch import Tensor, nn

from fl.models.torch_internals import Model, shell


def copied(model: Model) -> Model:
    """A copy with weights and buffers of its own, of a model whose layers share none.

    Like `copy.deepcopy`, but faster, since it does not look for shared layers: thousands of small
    clients start from copies of one model.
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
