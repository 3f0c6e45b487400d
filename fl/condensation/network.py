"""The network whose features condensation matches: drawn near the global model in every step."""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from fl.condensation.config import LocalCondensation
from fl.federation import RunSpec, TaskInput
from fl.models import build_classifier, copied
from fl.models.cost import parameters
from fl.seeding import OwnStream, in_round


class Networks:
    """A network near the global model w, drawn anew in place for every step.

    It is gamma w + (1 - gamma) w', where w' is a random start (FedAF, Eq. 17), or w + d, where d
    has a random direction and a norm of at most :func:`radius` (FedDM). Both draw from the client's
    own streams.
    """

    def __init__(self, model: nn.Module, inputs: TaskInput, config: LocalCondensation) -> None:
        self._model, self._run_spec, self._config = model, inputs.run_spec, config
        self._radius = radius(config, inputs.run_spec)
        self._stream = inputs.stream("condense/radius")
        purpose = in_round("condense/network", inputs.round)
        self._starts = OwnStream(inputs.run_spec.seed, purpose, inputs.client.id)
        self.network = copied(model).train(config.network == "train")
        """The present step's network, frozen."""
        self.network.requires_grad_(False)

    @torch.no_grad()
    def move(self) -> None:
        """Draws the next step's network."""
        weights = [w.detach() for w in self._model.parameters()]
        if self._config.gamma < 1:
            with self._starts:
                fresh = [w.to(weights[0].device) for w in self._fresh().parameters()]
            weights = [f.lerp(w, self._config.gamma) for f, w in zip(fresh, weights, strict=True)]
        if self._radius > 0:
            weights = within_radius(weights, self._radius, self._stream)
        for parameter, w in zip(self.network.parameters(), weights, strict=True):
            parameter.copy_(w)

    def _fresh(self) -> nn.Module:
        config, run_spec = self._config, self._run_spec
        return build_classifier(
            config.model, run_spec.image_shape, run_spec.num_classes, width=config.width
        )


def radius(config: LocalCondensation, run_spec: RunSpec) -> float:
    """FedDM's radius for the network as wide as it is: rho sqrt(weights / weights at width 1).

    rho is a norm, and that of a random direction grows with the root of the number of weights: so
    each of them moves as far at any width.
    """
    if config.width == 1 or not config.rho:
        return config.rho
    own, papers = (_weights(config.model, width, run_spec) for width in (config.width, 1.0))
    return config.rho * math.sqrt(own / papers)


@lru_cache(maxsize=8)
def _weights(model: str, width: float, run_spec: RunSpec) -> int:
    with torch.device("meta"):
        shape, classes = run_spec.image_shape, run_spec.num_classes
        return parameters(build_classifier(model, shape, classes, width=width))


def within_radius(weights: list[Tensor], rho: float, stream: torch.Generator) -> list[Tensor]:
    """The weights plus one Gaussian draw, which is shortened to norm ``rho`` if it is longer.

    With as many dimensions as a network has weights it always is longer.
    """
    moves = [torch.randn(w.shape, generator=stream).to(w.device) for w in weights]
    norm = torch.stack([move.norm() for move in moves]).norm()
    scale = (rho / norm).clamp(max=1)
    return [w + scale * move for w, move in zip(weights, moves, strict=True)]
