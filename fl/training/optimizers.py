"""SGD and Adam, for one model or a whole cohort of clients.

They call the fused kernels that torch.optim calls, for all clients' parameters at once, without
what torch.optim does around them for each tensor. Nor do they import torch.optim, which takes a
process a second and 90 MiB.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from fl.torch_internals import adam_step, add, add_differences, sgd_step

State = dict[str, list[Tensor]]
ByClient = Sequence[Sequence[Tensor]]
"""Of each client its tensors."""


class CohortOptimizer(Protocol):
    """Steps many clients at once. All start together; one that has stopped never steps again."""

    def step(self, clients: Sequence[int]) -> None:
        """One step of those clients' parameters, by position, along their ``grad``."""
        ...


class ResumableOptimizer:
    """An optimiser with a state that can be saved and continued from, at another rate too."""

    lr: float | Tensor
    """Learning rate of the next step; a scalar on the device where the step is captured."""

    def __init__(self, lr: float, parameters: ByClient, kept: Mapping[str, ByClient]) -> None:
        """``kept``: by name what the next steps depend on beside the rate."""
        self.lr, self._parameters, self._kept = lr, parameters, kept

    def step(self, clients: Sequence[int]) -> None:
        """See :class:`CohortOptimizer`."""
        raise NotImplementedError

    def state(self) -> State:
        """What its next steps depend on beside the rate: the tensors themselves, not copies."""
        return {name: [t for own in kept for t in own] for name, kept in self._kept.items()}

    def load_state(self, state: State) -> None:
        """Continues from ``state``, which an optimiser of equal shapes gave."""
        for name, tensors in self.state().items():
            for target, source in zip(tensors, state[name], strict=True):
                target.copy_(source)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def reach(self, steps: int) -> float:
        """How far a weight can move in so many steps: any way, as a gradient may be of any size."""
        return math.inf

    def for_cohort(self, parameters: ByClient) -> ResumableOptimizer:
        """The optimiser of a cohort: one list of parameters per client."""
        return _SGDSteps(self, parameters)


@dataclass(frozen=True)
class Adam:
    """Adam; its epsilon and default betas are torch's. AdamW with ``decoupled`` weight decay."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    decoupled: bool = False

    def reach(self, steps: int) -> float:
        """How far a weight can move in so many steps without decay: no step is longer than lr times
        the larger of 1 and (1 - beta_1) / sqrt(1 - beta_2) (Kingma and Ba, ICLR 2015, Section 2.1).

        A quarter more is given for rounding and the warm-up of the means.
        """
        first, second = self.betas
        return 1.25 * self.lr * steps * max(1.0, (1 - first) / math.sqrt(1 - second))

    def for_cohort(self, parameters: ByClient) -> ResumableOptimizer:
        """The optimiser of a cohort: one list of parameters per client."""
        return _AdamSteps(self, parameters)


Schedule = Literal["constant", "cosine", "step"]


@dataclass(frozen=True)
class Paced:
    """Another optimiser for one client by itself, with a rate that changes from step to step and
    gradients of a largest norm."""

    optimizer: SGD | Adam
    steps: int
    """T: the steps of the whole training."""
    schedule: Schedule = "constant"
    """cosine: (1 + cos(pi t / T)) / 2 times the rate in step t from 0. step: a tenth of it from T/2
    on, and a hundredth from 3T/4."""
    warmup: float = 0.0
    """Share of the steps in which the rate rises linearly; the schedule is over those after it."""
    max_norm: float | None = None
    """Longer gradients, over all parameters, are scaled to this norm."""

    def factor(self, step: int) -> float:
        """That of the rate in this step, from 0."""
        warm = round(self.warmup * self.steps)
        if step < warm:
            return (step + 1) / warm
        done = min(1.0, (step - warm) / max(1, self.steps - warm))
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "step":
            return 0.1 ** ((done >= 0.5) + (done >= 0.75))
        return 1.0

    def for_cohort(self, parameters: ByClient) -> CohortOptimizer:
        """The optimiser of a cohort, which must be of one client: others have other steps."""
        (own,) = parameters
        return _PacedSteps(self, own)


@dataclass(frozen=True)
class Proximal:
    """Another optimiser, of the loss plus FedProx's mu/2 |w - w_0|^2, where w_0 is the anchor."""

    optimizer: SGD | Adam | Paced
    mu: float

    def for_cohort(
        self, parameters: ByClient, anchors: Sequence[Sequence[Tensor] | None] | None = None
    ) -> CohortOptimizer:
        """The optimiser of a cohort: one list of parameters per client, and one of their anchors;
        None for parameters that are held near where they start."""
        given = anchors or parameters
        starts = [
            [p.detach().clone() for p in anchor or own]
            for own, anchor in zip(parameters, given, strict=True)
        ]
        return _Altered(self.optimizer, parameters, starts, self.mu)


@dataclass(frozen=True)
class Corrected:
    """Another optimiser, of gradients to which the same is added in every step (SCAFFOLD)."""

    optimizer: SGD | Adam | Paced

    def for_cohort(
        self, parameters: ByClient, added: Sequence[Sequence[Tensor] | None] | None = None
    ) -> CohortOptimizer:
        """The optimiser of a cohort: one list of parameters per client, and what is added to their
        gradients; None for nothing."""
        zeros = _zeros(parameters)
        whole = [own or zero for own, zero in zip(added or zeros, zeros, strict=True)]
        return _Altered(self.optimizer, parameters, whole)


AnyOptimizer = SGD | Adam | Paced | Proximal | Corrected


def innermost(optimizer: AnyOptimizer) -> SGD | Adam | Paced:
    """What takes the steps, without what is added to its gradients."""
    return optimizer.optimizer if isinstance(optimizer, Proximal | Corrected) else optimizer


class Parts:
    """One client's parameters in parts, each with an optimiser of its own: a step moves the parts
    whose positions it is given, and the momentum of the others is left as it is."""

    def __init__(
        self, settings: SGD | Adam | Sequence[Adam], parts: Sequence[Sequence[Tensor]]
    ) -> None:
        """``settings``: of all parts, or of each; ``parts``: the parameters; one may be empty."""
        each = settings if isinstance(settings, Sequence) else repeat(settings)
        pairs = zip(each, parts, strict=False)
        self._parts = [own.for_cohort([part]) if part else None for own, part in pairs]

    def step(self, clients: Sequence[int]) -> None:
        """See :class:`CohortOptimizer`, with parts in place of clients."""
        for k in clients:
            own = self._parts[k]
            if own is not None:
                own.step((0,))


class _SGDSteps(ResumableOptimizer):
    def __init__(self, settings: SGD, parameters: ByClient) -> None:
        self._settings, self._first = settings, True
        self._velocities = _zeros(parameters) if settings.momentum else []
        super().__init__(settings.lr, parameters, {"velocities": self._velocities})

    @torch.no_grad()
    def step(self, clients: Sequence[int]) -> None:
        parameters = _of(self._parameters, clients)
        sgd_step(
            parameters,
            _gradients(parameters),
            _of(self._velocities, clients) if self._velocities else [],
            lr=self.lr,
            momentum=self._settings.momentum,
            weight_decay=self._settings.weight_decay,
            is_first=self._first,
        )
        self._first = False

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self._first = False


class _AdamSteps(ResumableOptimizer):
    def __init__(self, settings: Adam, parameters: ByClient) -> None:
        self._settings = settings
        self._means, self._squares = _zeros(parameters), _zeros(parameters)
        # One counter for all, since a client that still trains has taken every step so far.
        self._steps = torch.zeros((), device=parameters[0][0].device)
        kept = {"means": self._means, "squares": self._squares, "steps": [[self._steps]]}
        super().__init__(settings.lr, parameters, kept)

    @torch.no_grad()
    def step(self, clients: Sequence[int]) -> None:
        parameters = _of(self._parameters, clients)
        self._steps += 1
        adam_step(
            parameters,
            _gradients(parameters),
            _of(self._means, clients),
            _of(self._squares, clients),
            self._steps,
            lr=self.lr,
            betas=self._settings.betas,
            weight_decay=self._settings.weight_decay,
            decoupled=self._settings.decoupled,
        )


class _PacedSteps:
    def __init__(self, settings: Paced, parameters: Sequence[Tensor]) -> None:
        self._settings, self._parameters = settings, parameters
        self._optimizer = settings.optimizer.for_cohort([parameters])
        self._taken = 0

    @torch.no_grad()
    def step(self, clients: Sequence[int]) -> None:
        settings = self._settings
        self._optimizer.lr = settings.optimizer.lr * settings.factor(self._taken)
        self._taken += 1
        if settings.max_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, settings.max_norm)
        self._optimizer.step(clients)


class _Altered:
    """Steps of another optimiser, along gradients that are altered first."""

    def __init__(
        self,
        optimizer: SGD | Adam | Paced,
        parameters: ByClient,
        given: ByClient,
        mu: float | None = None,
    ) -> None:
        """``given``: what is added to the gradients; with ``mu``, where the parameters are held."""
        self._parameters, self._given, self._mu = parameters, given, mu
        self._optimizer = optimizer.for_cohort(parameters)

    @torch.no_grad()
    def step(self, clients: Sequence[int]) -> None:
        parameters, given = _of(self._parameters, clients), _of(self._given, clients)
        for parameter in parameters:
            if parameter.grad is None:  # a layer that the step left out is altered too
                parameter.grad = torch.zeros_like(parameter)
        if self._mu is None:
            add(_gradients(parameters), given)
        else:
            add_differences(_gradients(parameters), parameters, given, self._mu)
        self._optimizer.step(clients)


def _zeros(parameters: ByClient) -> list[list[Tensor]]:
    return [[torch.zeros_like(p) for p in own] for own in parameters]


def _of(tensors: ByClient, clients: Sequence[int]) -> list[Tensor]:
    return [t for k in clients for t in tensors[k]]


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Each parameter's gradient; zeros for one that the loss does not depend on."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
