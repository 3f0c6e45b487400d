"""Models of the user's own: what makes one, and whether it gives what a classifier has to give."""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl.errors import UserError, reason_of
from fl.inputs import Inputs
from fl.models.common import SENT, AnyBatchNorm, ModelInfo
from fl.seeding import streams_restored
from fl.sources import code_of

KNOWN = ("shape", "image_shape", "num_classes", "width")
"""What a factory may ask for, by the names of its parameters."""


@dataclass(frozen=True)
class Factory:
    """Calls the user's class or function with those of ``KNOWN`` that it names."""

    make: Callable[..., nn.Module]
    asked: tuple[str, ...]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None

    def __call__(self, shape: tuple[int, ...], num_classes: int, width: float) -> nn.Module:
        """Raises `UserError` where what it makes is no module."""
        given = {"shape": shape, "image_shape": shape, "num_classes": num_classes, "width": width}
        model = self.make(**{name: given[name] for name in self.asked})
        if not isinstance(model, nn.Module):
            raise UserError(
                f"expected a torch.nn.Module of {self.make}, got {type(model).__name__}"
            )
        if self.loss is not None:
            vars(model)["own_loss"] = self.loss  # nn.Module would take a module for a layer
        return model


def described(
    name: str,
    make: Callable[..., nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> ModelInfo:
    """The record of such a model; see :func:`fl.models.registry.register_model`."""
    if isinstance(make, nn.Module):
        kind = type(make).__name__
        raise UserError(
            f"model {name}: expected the class or a function, got a {kind} object: to keep its "
            "weights give lambda: copy.deepcopy(model)"
        )
    if not callable(make):
        raise UserError(
            f"model {name}: expected a torch.nn.Module class or a function that makes one, "
            f"got {type(make).__name__}"
        )
    if loss is not None and not callable(loss):
        raise UserError(f"model {name}: loss: expected a function, got {type(loss).__name__}")
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise UserError(
            f"model {name}: loss: the parameters of a {type(loss).__name__} would not be trained: "
            "make it a part of the model, with a method training_loss"
        )
    factory, source = Factory(make, _asked(name, make), loss), code_of((make, loss)).digest
    code = f"{sys.version_info[:2]} {code_of(make).digest}"  # of bytecode
    return ModelInfo(
        *(name, "classifier", factory, lambda shape: True),
        needs="no more",
        source=source,
        images=False,
        code=code,
    )


def _asked(name: str, make: Callable[..., Any]) -> tuple[str, ...]:
    """Which of ``KNOWN`` are parameters; a parameter without a default must be one of them."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return ()
    for parameter in parameters.values():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if parameter.name not in KNOWN and not optional:
            raise UserError(
                f"model {name} needs {parameter.name}, but Onefold passes only {', '.join(KNOWN)}: "
                "give other arguments a default"
            )
        if parameter.name == "width" and optional:
            raise UserError(
                f"model {name}: width has the default {parameter.default!r}, but a run sets it to "
                "classifier.width, a factor on the paper's size: if it is this factor, leave the "
                "default out; else rename it"
            )
    return tuple(known for known in KNOWN if known in parameters)


@lru_cache(maxsize=64)
def check_output(info: ModelInfo, inputs: Inputs, num_classes: int, width: float) -> None:
    """Refuses a model that does not map such samples to a logit for each class.

    It is tried once in a process, and draws nothing from torch's global stream: weights drawn after
    it are the same whether it was tried or not.

    Raises:
        UserError: with what it gave, or how it failed.
    """
    shapes = [(2, *part.shape) for part in inputs.parts or (inputs,)]
    kind = "images" if inputs.kind == "pixels" else inputs.kind
    tried = f"{kind} of shape {' and '.join(map(str, shapes))}"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            model = info.made(inputs, num_classes, width).eval()
            samples = inputs.example(2)
            untouched = samples.clone()
            found = model(samples)
            in_training = _answer_in_training(model, samples)
            shared = _shared(model, info.made(inputs, num_classes, width))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(
                f"model {info.name} fails on {tried}: {type(error).__name__}: {reason_of(error)}"
            ) from None
    given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    # How many places there are the targets say, which whoever trains it knows.
    if len(given) not in (2, 3) or (given[0], given[-1]) != (2, num_classes):
        raise UserError(
            f"model {info.name} gives {given} for {tried}, expected {(2, num_classes)}: a logit "
            f"for each class, or each target's value; of tokens (2, places, {num_classes})"
        )
    if not isinstance(in_training, Tensor | None):
        raise UserError(
            f"model {info.name} returns {type(in_training).__name__} in training, not one tensor: "
            "turn other outputs off, or add a method training_loss(samples, targets)"
        )
    if not torch.equal(samples, untouched):
        raise UserError(
            f"model {info.name} changes its samples in place, but they are used again: write "
            "x = x / 2 instead of x.div_(2)"
        )
    if shared:
        raise UserError(
            f"model {info.name}: two calls returned models that share {shared}: create all layers "
            "in each call, or return copy.deepcopy(model)"
        )
    if refused := refusal(model, in_training):
        raise UserError(f"model {info.name} cannot be trained: {refused}")


SQUASHES = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
"""By torch's name of its gradient, what makes probabilities of logits."""


def squashes(model: nn.Module, inputs: Inputs) -> str | None:
    """Whether the last thing that the model does is a softmax or a sigmoid, by its name."""
    with streams_restored(), torch.enable_grad():
        answer = model.eval()(inputs.example(2))
    return SQUASHES.get(answer.grad_fn.name()) if answer.grad_fn is not None else None


@torch.no_grad()
def unsteady(model: nn.Module, inputs: Inputs) -> str | None:
    """Why the model's answer to a sample is not always the same in evaluation; None if it is."""
    samples = inputs.example(4)
    with streams_restored():
        found = model.eval()(samples)
        if not torch.allclose(model(samples), found):
            return "draws random numbers"
        try:
            alone = model(samples[:2])
        except (Exception, SystemExit):
            return "needs more samples than two"
    same = torch.allclose(alone, found[:2], rtol=1e-3, atol=1e-4)
    return None if same else "depends on the batch's other samples"


def _shared(one: nn.Module, other: nn.Module) -> str | None:
    """Name of a trained weight or a BatchNorm buffer of both; clients would train it in turns."""
    held = {place for _, place in _changing(other)}
    return next((name for name, place in _changing(one) if place in held), None)


def _changing(model: nn.Module) -> Iterator[tuple[str, int]]:
    """By name, where in memory what training changes lies."""
    for path, layer in model.named_modules():
        there = [(name, p) for name, p in layer.named_parameters(recurse=False) if p.requires_grad]
        there += layer.named_buffers(recurse=False) if isinstance(layer, AnyBatchNorm) else []
        for name, tensor in there:
            if not is_lazy(tensor) and tensor.numel() and not tensor.is_meta:
                yield f"{path}.{name}".lstrip("."), tensor.untyped_storage().data_ptr()


def _answer_in_training(model: nn.Module, samples: Tensor) -> Any:
    """What it answers in training; None where its own loss asks it, or where it fails: training
    will show."""
    if hasattr(model, "training_loss"):
        return None
    try:
        with torch.enable_grad():
            return copy.deepcopy(model).train()(samples)
    except (Exception, SystemExit):
        return None


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
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            return f"its {path or 'whole'} has sparse gradients: leave sparse=True out"
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
