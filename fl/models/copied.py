"""A model's copy, at the price of copying its numbers."""

from typing import TypeVar

from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def copied(model: Model) -> Model:
    """A copy with weights and buffers of its own, of a model whose layers share none.

    As `copy.deepcopy`, without looking for what it has copied already: thousands of small clients
    start from one model.
    """
    twin = shell(model)
    twin._parameters = {n: p if p is None else _parameter(p) for n, p in model._parameters.items()}
    twin._buffers = {n: b if b is None else b.clone() for n, b in model._buffers.items()}
    twin._modules = {n: m if m is None else copied(m) for n, m in model._modules.items()}
    return twin


def shell(model: Model) -> Model:
    """The same weights, buffers and layers in a module whose own can be exchanged for others."""
    twin = model.__class__.__new__(model.__class__)
    twin.__dict__ = {n: v.copy() if isinstance(v, dict) else v for n, v in vars(model).items()}
    return twin


def _parameter(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
