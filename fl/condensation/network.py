"""The network whose features are matched: the global model, moved a little in every step."""

import copy

import torch
from torch import Tensor, nn

from fl.condensation.config import LocalCondensation
from fl.federation import TaskInput
from fl.models import build_classifier


def features_and_logits(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """h_w(x), what enters the model's last linear layer, (B, d), and the logits f_w(x)."""
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    entered: list[Tensor] = []
    hook = last.register_forward_pre_hook(lambda _, inputs: entered.extend(inputs))
    try:
        logits = model(images)
    finally:
        hook.remove()
    return entered[0], logits


class Networks:
    """One network after another near the global model w, in place of one another.

    Each is drawn from w anew: gamma w + (1 - gamma) w', w' a random start (FedAF, Eq. 17), or
    w + d, d of a random direction and a norm of at most rho (FedDM). w' draws from torch's global
    stream, as dropout does, d from the client's own.
    """

    def __init__(self, model: nn.Module, inputs: TaskInput, config: LocalCondensation) -> None:
        self._model, self._problem, self._config = model, inputs.problem, config
        self._stream = inputs.stream("condense/radius")
        self._network = copy.deepcopy(model).train(config.network == "train")
        self._network.requires_grad_(False)

    @torch.no_grad()
    def next(self) -> nn.Module:
        """The network of the next step, frozen."""
        weights = [w.detach() for w in self._model.parameters()]
        if self._config.gamma < 1:
            fresh = [w.to(weights[0].device) for w in self._fresh().parameters()]
            weights = [f.lerp(w, self._config.gamma) for f, w in zip(fresh, weights, strict=True)]
        if self._config.rho > 0:
            weights = within_radius(weights, self._config.rho, self._stream)
        for parameter, w in zip(self._network.parameters(), weights, strict=True):
            parameter.copy_(w)
        return self._network

    def _fresh(self) -> nn.Module:
        config, problem = self._config, self._problem
        return build_classifier(
            config.model, problem.image_shape, problem.num_classes, width=config.width
        )


def within_radius(weights: list[Tensor], rho: float, stream: torch.Generator) -> list[Tensor]:
    """The weights moved by one Gaussian draw, which is shortened to norm ``rho`` if it is longer.

    In as many dimensions as a network has weights it always is.
    """
    moves = [torch.randn(w.shape, generator=stream).to(w.device) for w in weights]
    norm = torch.stack([move.norm() for move in moves]).norm()
    scale = (rho / norm).clamp(max=1)
    return [w + scale * move for w, move in zip(weights, moves, strict=True)]
