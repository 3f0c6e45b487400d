"""A classifier's state: what of it is sent, and what a new module needs before it has one."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl.inputs import Inputs
from fl.models.shapes import AnyBatchNorm

SENT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of weights that can be sent."""


@torch.no_grad()
def settle(model: nn.Module, inputs: Inputs) -> None:
    """Passes two samples through a new module, so that lazy layers get their weights.

    Old ``weight_norm`` computes its weight in the forward pass: without a graph it can be copied.
    In eval mode, and torch's global stream is left as it was.
    """
    if not any(map(_needs_a_pass, model.modules())):
        return
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices=[]):
        model.eval()(inputs.zeros(2))
    for module, mode in modes.items():
        module.training = mode


def _needs_a_pass(module: nn.Module) -> bool:
    """Whether it has a weight that a pass makes: a lazy one, or that of the old ``weight_norm``."""
    own = dict(module.named_parameters(recurse=False))
    old_norm = any(n.endswith("_g") and f"{n.removesuffix('_g')}_v" in own for n in own)
    return old_norm or any(map(is_lazy, own.values()))


def staying(model: nn.Module) -> frozenset[str]:
    """Names of the state that every client has from the start, so that it is not sent.

    They are parameters that are not trained, further names of a tied one, whole numbers
    (BatchNorm's counter, unless its statistics depend on it), and buffers with infinities, such as
    a mask.
    """
    counters = {
        f"{path}.num_batches_tracked".removeprefix(".")
        for path, layer in model.named_modules()
        if isinstance(layer, AnyBatchNorm) and layer.momentum is None
    }
    seen: set[int] = set()
    found = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, nn.Parameter):
            is_sent = tensor.requires_grad
        else:
            finite = tensor.dtype in SENT and (tensor.is_meta or bool(tensor.isfinite().all()))
            is_sent = finite or name in counters
        if not is_sent or id(tensor) in seen:
            found.add(name)
        seen.add(id(tensor))
    return frozenset(found)


def state_sent(model: nn.Module) -> dict[str, Tensor]:
    """The part of the module's state that clients and server send: all that training may change."""
    stays = vars(model).get("stays", ())
    return {name: t for name, t in model.state_dict().items() if name not in stays}


def parameters_sent(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, without gradients: of what is sent all but buffers."""
    sent = state_sent(model)
    return {name: sent[name] for name, _ in model.named_parameters() if name in sent}


def norm_names(model: nn.Module) -> set[str]:
    """Names of what is sent of the model's BatchNorm layers, which are found by their type."""
    names = {
        f"{layer}.{name}".removeprefix(".")
        for layer, module in model.named_modules()
        if isinstance(module, AnyBatchNorm)
        for name in module.state_dict()
    }
    return names & state_sent(model).keys()


def load_sent(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads such a part; the rest stays as it is."""
    load_whole(model, state, strict=False)


def load_whole(model: nn.Module, state: Mapping[str, Tensor], *, strict: bool = True) -> None:
    """Loads a state that is of the module's own versions, which neither messages nor files name:
    some modules look at them as they load, and refuse a state without."""
    versioned = model.state_dict()  # an ordered dict that has them
    if strict and versioned.keys() != state.keys():
        versioned = OrderedDict(state)  # which is then refused as usual
    versioned.update(state)
    model.load_state_dict(versioned, strict=strict)


def without_sharing(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the host, contiguous, each with memory of its own, as safetensors needs it."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        found[name] = own.clone() if place in seen else own
        seen.add(place)
    return found


def refusal(model: nn.Module, answer: Tensor | None) -> str | None:
    """Why clients cannot train a module that has been settled; None if they can.

    ``answer``: what it gives in training, if that is known.
    """
    for path, layer in model.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            return f"its {path or 'whole'} is a ScriptModule of torch.jit: give the module itself"
        if type(layer).get_extra_state is not nn.Module.get_extra_state:
            what = path or type(layer).__name__
            return f"its {what} has get_extra_state, which is not sent: keep it in buffers"
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, nn.Parameter) and tensor.dtype not in SENT:
            return f"its {name} is {tensor.dtype}; allowed are real floats"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return "it has no parameter that is trained"
    if unknown := _unregistered(model):
        return (
            f"torch does not know its {unknown} as a part of it: a list of layers must be an "
            "nn.ModuleList, and a weight an nn.Parameter; what is not trained needs "
            "requires_grad_(False)"
        )
    if answer is not None and not answer.requires_grad:
        return "its answer has no gradient, as after detach() or in NumPy"
    return None


def _unregistered(model: nn.Module) -> str | None:
    """Name of an attribute with weights to train that are not among the module's parameters."""
    known = set(map(id, model.parameters()))
    for path, layer in model.named_modules():
        for name, value in vars(layer).items():
            inside = value.values() if isinstance(value, dict) else value
            for part in inside if isinstance(value, dict | list | tuple | set) else [value]:
                weights = part.parameters() if isinstance(part, nn.Module) else [part]
                if any(_trained(weight) and id(weight) not in known for weight in weights):
                    return f"{path}.{name}".removeprefix(".")
    return None


def _trained(weight: object) -> bool:
    return isinstance(weight, Tensor) and weight.is_leaf and weight.requires_grad
