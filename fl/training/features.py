"""A classifier's features: what enters its head, the linear layer that makes logits of them."""

from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import RunSpec
from fl.models.common import Built, ModelInfo
from fl.models.registry import MODELS, build_classifier
from fl.training.stacked import PerClient


def features_and_logits(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """h_w(x), the input of the model's head, (B, d), and the logits f_w(x)."""
    entered: list[Tensor] = []
    hook = head_of(model).register_forward_pre_hook(lambda _, inputs: entered.extend(inputs))
    try:
        logits = model(images)
    finally:
        hook.remove()
    return entered[0], logits


@torch.no_grad()
def features_of(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """The model's features of each image in eval mode, (N, d), in the images' order."""
    model.eval()
    return torch.cat([features_and_logits(model, part)[0] for part in images.split(batch_size)])


def head_of(model: nn.Module) -> nn.Module:
    """The head of a classifier, or of a cohort of them.

    Raises:
        UserError: it has none.
    """
    built = vars(model).get("built_as")
    if isinstance(built, Built) and MODELS[built.model].source:
        return model.get_submodule(_head_name(MODELS[built.model], built))
    # Onefold's own models have their head last.
    return [layer for layer in model.modules() if _is_linear(layer)][-1]


def check_head(method: str, model: str, width: float, run_spec: RunSpec) -> None:
    """Raises `UserError` for a model of the user's own without the head that a method needs."""
    if MODELS[model].source:
        built = Built(model, run_spec.inputs, run_spec.outputs, width)
        try:
            _head_name(MODELS[model], built)
        except UserError as error:
            raise UserError(f"{method} needs features, but {error}; fedavg needs none") from None


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, PerClient) and layer.is_linear)


@lru_cache(maxsize=64)
@torch.no_grad()
def _head_name(info: ModelInfo, built: Built) -> str:
    """The last linear layer to run that alone decides the logits."""
    with torch.random.fork_rng(devices=[]):
        inputs, classes = built.inputs, built.num_classes
        model = build_classifier(info.name, inputs, classes, width=built.width).eval()
        images = inputs.draw(4)
        heads = [name for name in _in_order(model, images) if _decides(model, name, images)]
    if not heads:
        raise UserError(
            f"{info.name} has no nn.Linear that gives its logits or alone determines them"
        )
    return heads[-1]


def _in_order(model: nn.Module, images: Tensor) -> list[str]:
    """Names of the linear layers that run once, in that order."""
    ran: list[str] = []

    def note(name: str, *_: object) -> None:
        ran.append(name)

    linear = [(name, layer) for name, layer in model.named_modules() if _is_linear(layer)]
    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in linear]
    model(images)
    for hook in hooks:
        hook.remove()
    return [name for name in ran if ran.count(name) == 1]


def _decides(model: nn.Module, name: str, images: Tensor) -> bool:
    """Whether the logits are other images' where the layer's output is theirs."""
    outputs: list[Tensor] = []

    def exchanged(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        outputs.append(output)
        return output.flip(0)

    logits = model(images)
    hook = model.get_submodule(name).register_forward_hook(exchanged)
    found = model(images)
    hook.remove()
    is_head = outputs[0].shape == logits.shape
    return is_head and torch.allclose(found, logits.flip(0), rtol=1e-4, atol=1e-5)
