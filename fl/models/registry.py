"""All models by name, collected from the files in ``architectures/``, and their builders.

A model of the user's own is registered beside them: any module class or factory. Sizes against the
FedMHO paper's Table 2 are in docs/methods/models.md.
"""

import copy
import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl.errors import UserError, check_name, reason_of, unknown
from fl.inputs import Inputs
from fl.models import architectures
from fl.models.cvae import CVAE
from fl.models.shapes import AnyBatchNorm, Built, ImageShape, ModelInfo
from fl.models.state import refusal, settle, state_sent, staying
from fl.seeding import streams_restored
from fl.sources import code_of

# Whether a model of the user's own gives what a classifier has to give.


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
            samples = inputs.draw(2, torch.Generator().manual_seed(0))
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
    at_tokens = (2, *inputs.shape, num_classes) if inputs.kind == "integers" else None
    if given not in ((2, num_classes), at_tokens):
        raise UserError(
            f"model {info.name} gives {given} for {tried}, "
            f"expected {(2, num_classes)}: a logit for each class"
        )
    if not isinstance(in_training, Tensor | None):
        raise UserError(
            f"model {info.name} answers with {type(in_training).__name__} in training: switch its "
            "further outputs off, or give it a method training_loss(samples, targets)"
        )
    if not torch.equal(samples, untouched):
        raise UserError(
            f"model {info.name} changes its samples in place, which others are given too: leave "
            "them as they are, as by x = x / 2 in place of x.div_(2)"
        )
    if shared:
        raise UserError(
            f"model {info.name}: each model must have weights of its own, but two that were made "
            f"share {shared}: make all layers anew in each call, as with copy.deepcopy"
        )
    if refused := refusal(model, in_training):
        raise UserError(f"model {info.name} cannot be trained: {refused}")


SQUASHES = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
"""By torch's name of its gradient, what makes probabilities of logits."""


def squashes(model: nn.Module, inputs: Inputs) -> str | None:
    """Whether the last thing that the model does is a softmax or a sigmoid, by its name."""
    with streams_restored(), torch.enable_grad():
        answer = model.eval()(inputs.zeros(2))
    return SQUASHES.get(answer.grad_fn.name()) if answer.grad_fn is not None else None


@torch.no_grad()
def unsteady(model: nn.Module, inputs: Inputs) -> str | None:
    """Why the model's answer to a sample is not always the same in evaluation; None if it is."""
    samples = inputs.draw(4, torch.Generator().manual_seed(0))
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


def _collect() -> list[ModelInfo]:
    """Each file has one entry ``MODEL``, or several in ``MODELS``."""
    found: list[ModelInfo] = []
    for file in iter_modules(architectures.__path__, f"{architectures.__name__}."):
        module = import_module(file.name)
        found += getattr(module, "MODELS", None) or [module.MODEL]
    return found


_OURS = _collect()
CLASSIFIERS = {info.name: info for info in _OURS if info.kind == "classifier"}
"""By name, with those that are registered later."""
GENERATORS = {info.name: info for info in _OURS if info.kind == "generator"}
MODELS = ChainMap(CLASSIFIERS, GENERATORS)
OURS = frozenset(MODELS)
"""Names that come with Onefold, which nothing registered later may take."""


def register(info: ModelInfo) -> None:
    """Adds a classifier; one of the same name that was registered before is replaced.

    Raises:
        UserError: the name is one of Onefold's own, or no word.
    """
    check_name("model", info.name, OURS)
    CLASSIFIERS[info.name] = info


def build_classifier(
    name: str, samples: Inputs | ImageShape, num_classes: int, *, width: float = 1.0
) -> nn.Module:
    """A classifier from samples (B, ...) to logits (B, num_classes).

    Args:
        name: of the model.
        samples: what it takes, or the shape (C, H, W) of images, of which pixels are in [0, 1].
        num_classes: of the data set.
        width: factor on channels and hidden units; 1 is the paper's.

    Initialised from torch's global stream. Raises `UserError` as `check_classifier`.
    """
    inputs = Inputs.of(samples)
    check_classifier(name, inputs, num_classes, width=width)
    model = MODELS[name].made(inputs, num_classes, width)
    if MODELS[name].source:
        settle(model, inputs)
    model.stays = staying(model)  # type: ignore[assignment]
    model.built_as = Built(name, inputs, num_classes, width)  # type: ignore[assignment]
    return model


def in_fast_layout(model: nn.Module) -> nn.Module:
    """The model in channels-last layout, in which convolutions are faster; in place.

    One that has a model of the user's own in it stays as it is: its code may rely on the layout
    that it was written for, as ``x.view(len(x), -1)`` after a convolution does.
    """
    return model if holds_own(model) else model.to(memory_format=torch.channels_last)


def holds_own(model: nn.Module) -> bool:
    """Whether it is a model of the user's own, or has one in it."""
    built = (vars(part).get("built_as") for part in model.modules())
    return any(isinstance(about, Built) and about.model not in OURS for about in built)


def build_shell(
    name: str, samples: Inputs | ImageShape, num_classes: int, *, width: float = 1.0
) -> nn.Module:
    """The classifier without memory for its weights, which may be large.

    A model of the user's is built as it is, since not every one can be built without.
    """
    with torch.device("cpu" if MODELS[name].source else "meta"):
        return build_classifier(name, samples, num_classes, width=width)


def classifier_bytes(
    name: str, samples: Inputs | ImageShape, num_classes: int, *, width: float = 1.0
) -> int:
    """Bytes of what is sent of such a classifier: see :func:`fl.models.state.state_sent`."""
    model = build_shell(name, samples, num_classes, width=width)
    return sum(t.numel() * t.element_size() for t in state_sent(model).values())


def build_generator(
    name: str, image_shape: ImageShape, num_classes: int, *, latent: int = 20, width: float = 1.0
) -> CVAE:
    """A conditional VAE for images (C, H, W) and num_classes labels, with `latent` dimensions.

    `width` multiplies channels and hidden units; 1 is the paper's. Initialised from torch's global
    stream. Raises `UserError` as `check_generator`.
    """
    check_generator(name, image_shape)
    model = GENERATORS[name].build(image_shape, num_classes, latent, width)
    assert isinstance(model, CVAE)
    return model


def check_classifier(
    name: str, samples: Inputs | ImageShape, num_classes: int, *, width: float = 1.0
) -> None:
    """Raises `UserError` if `build_classifier` cannot build this; of Onefold's own builds none."""
    inputs = Inputs.of(samples)
    info = _found("classifier", CLASSIFIERS, name, inputs)
    if info.source:
        check_output(info, inputs, num_classes, width)


def check_generator(name: str, image_shape: ImageShape) -> None:
    """Raises `UserError` if `build_generator` cannot build this; builds nothing."""
    _found("generator", GENERATORS, name, Inputs(image_shape))


def _found(kind: str, known: Mapping[str, ModelInfo], name: str, inputs: Inputs) -> ModelInfo:
    """The model of that name, which takes such samples."""
    if name not in known:
        raise unknown(kind, name, known)
    info = known[name]
    if min(inputs.shape) < 1 or not info.takes(inputs):
        channels = "images of 1 or 3 channels and " if info.images else ""
        other = "" if inputs.is_image else "; mlp takes any numbers, as may a model of your own"
        other = "; a model of your own may" if inputs.parts else other
        raise UserError(
            f"{name} does not take {inputs}; it needs {channels}{info.needs}{inputs.hint}{other}"
        )
    return info


# Models of the user's own.

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


def register_model(
    name: str,
    make: Callable[..., nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Makes a classifier of the user's own known by a name, as for ``--classifier.model``.

    Args:
        name: letters, digits and ``. _ + -``; not one of Onefold's models.
        make: a `torch.nn.Module` class, or a function that makes one. Of ``shape`` (that of one
            sample; ``image_shape`` is the same), ``num_classes`` and ``width`` it gets those that
            it names as parameters, ``width`` without a default of its own. The module maps samples
            (B, ...), as :func:`fl.inputs.as_inputs` gives them, to logits (B, num_classes). If it
            has a method ``training_loss(samples, targets)``, clients minimise what that returns.
        loss: what clients minimise in place of cross-entropy, or of what the targets say: a
            function of answers (B, ...) and targets (B, ...), to a number or one for each, (B,).

    Raises:
        UserError: it cannot be called so, or the name is taken.
    """
    if isinstance(make, nn.Module):
        kind = type(make).__name__
        raise UserError(
            f"model {name}: expected the class or a function, got a {kind} that is made"
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
            f"model {name}: loss: a {type(loss).__name__} with parameters, which nobody would "
            "train: make it a part of the model, with a method training_loss"
        )
    factory, source = Factory(make, _asked(name, make), loss), code_of((make, loss)).digest
    code = f"{sys.version_info[:2]} {code_of(make).digest}"  # of bytecode
    register(
        ModelInfo(
            *(name, "classifier", factory, lambda shape: True),
            needs="no more",
            source=source,
            images=False,
            code=code,
        )
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
                f"model {name} needs {parameter.name}; it can be given {', '.join(KNOWN)}: "
                "give what else it needs a default"
            )
        if parameter.name == "width" and optional:
            raise UserError(
                f"model {name}: width has the default {parameter.default!r}, but a run gives it "
                "classifier.width, a factor on the paper's size: leave the default out if it is "
                "that, else name it otherwise"
            )
    return tuple(known for known in KNOWN if known in parameters)
