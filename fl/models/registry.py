"""All models by name, collected from the files in ``architectures/``, and their builders.

A model of the user's own is registered beside them: any module class or factory. Sizes against the
FedMHO paper's Table 2 are in docs/methods/models.md.
"""

import copy
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fl.errors import UserError, check_name, unknown
from fl.inputs import Inputs
from fl.models import architectures
from fl.models.architectures.cvaes import CVAE
from fl.models.common import AnyBatchNorm, Built, ImageShape, ModelInfo, settle, state_sent, staying
from fl.models.own import check_output, described
from fl.torch_internals import shell

Model = TypeVar("Model", bound=nn.Module)


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
    return twins[""]


def _without_graph(model: nn.Module) -> dict[int, Any]:
    """Copies, for `copy.deepcopy`, of tensors that a forward pass left with a graph, which it
    refuses."""
    attributes = (value for layer in model.modules() for value in vars(layer).values())
    tensors = (t for t in attributes if isinstance(t, Tensor) and not t.is_leaf)
    return {id(tensor): tensor.detach().clone() for tensor in tensors}


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
    """Bytes of what is sent of such a classifier: see :func:`fl.models.common.state_sent`."""
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


# How few samples a batch may have. In training BatchNorm needs two values per channel. A
# convolutional one has a value for each pixel of its map; one behind a linear layer, or on a map of
# a single pixel as ResNet-18 has on images of 8 x 8, has one for each sample.


def smallest_batch(model: nn.Module) -> int:
    """Samples that a batch needs so that the model, or each one of an ensemble, can be trained."""
    built = [vars(part).get("built_as") for part in model.modules()]
    return max((_smallest(MODELS[b.model], b) for b in built if isinstance(b, Built)), default=1)


def smallest_batch_of(name: str, inputs: Inputs, num_classes: int, width: float) -> int:
    """The same of a classifier by name, which is built for it once in a process."""
    return _smallest(MODELS[name], Built(name, inputs, num_classes, width))


@lru_cache(maxsize=64)
@torch.no_grad()
def _smallest(info: ModelInfo, built: Built) -> int:
    """2 if a batch of one sample fails for want of values, else 1.

    A model of the user's is built as it is, others without values for their weights. (A pass on the
    device "meta" would need no memory either, but torch imports its compiler for it: 2.6 seconds.)
    """
    with torch.random.fork_rng(devices=[]):
        with torch.device("cpu" if info.source else "meta"):
            model = info.made(built.inputs, built.num_classes, built.width).train()
        if not info.source:
            if not any(isinstance(m, AnyBatchNorm) for m in model.modules()):
                return 1
            model = model.to_empty(device="cpu")
        try:
            for count in (2, 1):  # lazy layers take their form from the first
                model(built.inputs.example(count))
        except (Exception, SystemExit) as error:  # training will report all else
            return 2 if "more than 1 value per channel" in str(error) else 1
    return 1


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
    register(described(name, make, loss))
