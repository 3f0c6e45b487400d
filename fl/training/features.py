"""A classifier's features: what enters its last linear layer."""

from torch import Tensor, nn

from fl.training.per_client import PerClient


def features_and_logits(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """h_w(x), the input of the model's last linear layer, (B, d), and the logits f_w(x)."""
    entered: list[Tensor] = []
    hook = last_linear(model).register_forward_pre_hook(lambda _, inputs: entered.extend(inputs))
    try:
        logits = model(images)
    finally:
        hook.remove()
    return entered[0], logits


def last_linear(model: nn.Module) -> nn.Module:
    """The model's last linear layer, which makes logits of features; of a cohort too."""
    return [layer for layer in model.modules() if _is_linear(layer)][-1]


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, PerClient) and layer.is_linear)
