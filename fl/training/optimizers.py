"""The optimisers of local training, for a cohort of one client or many.

They call the fused kernels that torch.optim calls, for all clients' parameters at once, and leave
out what torch.optim does around them for each tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class CohortOptimizer(Protocol):
    """Steps many clients at once. All start together; one that has stopped is not named again."""

    def step(self, clients: Sequence[int]) -> None:
        """One step of those clients' parameters, by position, along their ``grad``."""
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: float
    momentum: float = 0.0

    def together(self, parameters: Sequence[Sequence[Tensor]]) -> CohortOptimizer:
        """For a cohort: one list of parameters per client."""
        return _TogetherSGD(self, parameters)


@dataclass(frozen=True)
class Adam:
    """Adam with torch's defaults."""

    lr: float

    def together(self, parameters: Sequence[Sequence[Tensor]]) -> CohortOptimizer:
        """For a cohort: one list of parameters per client."""
        return _TogetherAdam(self, parameters)


@dataclass(frozen=True)
class Proximal:
    """Another optimiser, of the loss plus FedProx's mu/2 |w - w_0|^2, where w_0 is the start."""

    optimizer: SGD | Adam
    mu: float

    def together(self, parameters: Sequence[Sequence[Tensor]]) -> CohortOptimizer:
        """For a cohort: one list of parameters per client."""
        return _TogetherProximal(self, parameters)


class _TogetherSGD:
    def __init__(self, settings: SGD, parameters: Sequence[Sequence[Tensor]]) -> None:
        self._settings = settings
        self._parameters = parameters
        self._velocities = _zeros(parameters)
        self._first = True

    @torch.no_grad()
    def step(self, clients: Sequence[int]) -> None:
        """See :class:`CohortOptimizer`."""
        parameters = _of(self._parameters, clients)
        torch._fused_sgd_(
            parameters,
            _gradients(parameters),
            _of(self._velocities, clients) if self._settings.momentum else [],
            weight_decay=0.0,
            momentum=self._settings.momentum,
            lr=self._settings.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=self._first,
        )
        self._first = False


class _TogetherAdam:
    def __init__(self, settings: Adam, parameters: Sequence[Sequence[Tensor]]) -> None:
        self._settings = settings
        self._parameters = parameters
        self._means, self._squares = _zeros(parameters), _zeros(parameters)
        # One counter for all: who still trains has taken every step so far.
        self._steps = torch.zeros((), device=parameters[0][0].device)

    @torch.no_grad()
    def step(self, clients: Sequence[int]) -> None:
        """See :class:`CohortOptimizer`."""
        parameters = _of(self._parameters, clients)
        self._steps += 1
        torch._fused_adam_(
            parameters,
            _gradients(parameters),
            _of(self._means, clients),
            _of(self._squares, clients),
            [],
            [self._steps] * len(parameters),
            lr=self._settings.lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


class _TogetherProximal:
    def __init__(self, settings: Proximal, parameters: Sequence[Sequence[Tensor]]) -> None:
        self._optimizer = settings.optimizer.together(parameters)
        self._mu = settings.mu
        self._parameters = parameters
        self._starts = [[p.detach().clone() for p in own] for own in parameters]

    @torch.no_grad()
    def step(self, clients: Sequence[int]) -> None:
        """See :class:`CohortOptimizer`."""
        parameters = _of(self._parameters, clients)
        drift = torch._foreach_sub(parameters, _of(self._starts, clients))
        torch._foreach_add_(_gradients(parameters), drift, alpha=self._mu)
        self._optimizer.step(clients)


def _zeros(parameters: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    return [[torch.zeros_like(p) for p in own] for own in parameters]


def _of(tensors: Sequence[Sequence[Tensor]], clients: Sequence[int]) -> list[Tensor]:
    return [t for k in clients for t in tensors[k]]


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]
