"""What models share: their records, kinds of layers, scaling by width, and their state.

Of a classifier's state a part is sent, and a new module may need something before it has one.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl.inputs import Inputs, take_parts

ImageShape = tuple[int, int, int]
"""(channels, height, width) of one image."""

AnyDropout = (
    nn.Dropout
    | nn.Dropout1d
    | nn.Dropout2d
    | nn.Dropout3d
    | nn.AlphaDropout
    | nn.FeatureAlphaDropout
)
AnyBatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
"""A lazy layer becomes one of these with its first batch."""
SENT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of weights that can be sent."""


def paper_form(image_shape: ImageShape, num_classes: int) -> Literal["mnist", "emnist", "svhn"]:
    """Which of the FedMHO paper's three small models suits these images.

    The paper has one per data set (WWW'26, Table 2): MNIST and FMNIST share the first, EMNIST has
    the second, SVHN the third. Gray images that are not MNIST's size take EMNIST's, whose padded
    convolutions fit any size. Ten classes and an unknown one (FedOV) are still MNIST's.
    """
    if image_shape[0] > 1:
        return "svhn"
    return "mnist" if image_shape == (1, 28, 28) and num_classes <= 11 else "emnist"


def scaled(units: int, width: float) -> int:
    """`units` channels or hidden units at a width multiplier: rounded, never below one."""
    return max(1, round(units * width))


@contextmanager
def forwards_replaced(own: Mapping[nn.Module, Callable[..., Tensor]]) -> Iterator[None]:
    """Inside the context each module computes by the function that is given for it."""
    before = {module: vars(module).get("forward") for module in own}
    try:
        for module, forward in own.items():
            module.forward = forward
        yield
    finally:
        for module, replaced in before.items():
            del module.forward
            if replaced is not None:  # by somebody else, before
                module.forward = replaced


class Flattening(nn.Module):
    """A classifier of two parts: ``features`` of the images, flattened, and ``classifier``."""

    features: nn.Module
    classifier: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


@dataclass(frozen=True)
class ModelInfo:
    """One model: its name, its builder, and the samples it takes."""

    name: str
    kind: Literal["classifier", "generator"]
    build: Callable[..., nn.Module]
    """Called with the samples' shape, classes and width; a generator's with latent before width."""
    supports: Callable[[tuple[int, ...]], bool]
    """Whether the model takes samples of this shape."""
    needs: str
    """What `supports` requires, in words."""
    source: str = ""
    """Hash of the code of a model of the user's own, on which a client's upload depends."""
    images: bool = True
    """Whether it takes images alone."""
    code: str = ""
    """Hash of that code without its loss, by which a saved model is known to be of it."""

    def takes(self, inputs: Inputs) -> bool:
        """Whether it takes such samples."""
        if inputs.parts:
            return bool(self.source)
        return (inputs.is_image or not self.images) and self.supports(inputs.shape)

    def made(self, inputs: Inputs, num_classes: int, width: float) -> nn.Module:
        """A classifier for such samples."""
        model = self.build(inputs.shape_for_model, num_classes, width)
        if inputs.parts:
            model.register_forward_pre_hook(partial(take_parts, inputs))
        return model


@dataclass(frozen=True)
class Built:
    """What a classifier was built of; the module has it as ``built_as``."""

    model: str
    inputs: Inputs
    num_classes: int
    width: float


def at_least(side: int, name: str, build: Callable[..., nn.Module]) -> ModelInfo:
    """The record of a classifier of images whose sides have so many pixels."""
    needs = f"sides of at least {side}"
    return ModelInfo(name, "classifier", build, lambda shape: min(shape[1:]) >= side, needs)


def divisible(image_shape: tuple[int, ...], factor: int) -> bool:
    """Whether both sides are multiples of the factor."""
    return all(side % factor == 0 for side in image_shape[1:])


# A classifier's state.


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
        model.eval()(inputs.example(2))
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


def digest_of(tensors: Mapping[str, Tensor], about: str) -> str:
    """A hash of named tensors and of a text."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in tensors.items():
        # With the shape and the type, and apart from what stands before it.
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
