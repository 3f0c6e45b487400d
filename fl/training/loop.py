"""The training loop: everything that learns here, client or server, learns in it."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from fl.training.optimizers import CohortOptimizer


class Step(NamedTuple):
    """What one step minimises."""

    loss: Tensor
    """A scalar; one that depends on no parameter has no gradients to give."""
    clients: Sequence[int] = (0,)
    """Whose parameters are moved, by position."""


def minimise(
    steps: Iterable[Step],
    parameters: Sequence[Sequence[Tensor]],
    optimizer: CohortOptimizer,
    adjust: Callable[[], None] = lambda: None,
) -> None:
    """Moves the parameters along the gradient of each step's loss.

    Args:
        steps: computes a loss when it is asked for it, with the weights that the step before left.
        parameters: of each client.
        optimizer: over the same parameters.
        adjust: what becomes of the gradients before the step: they are cut, or summed over ranks.
    """
    for loss, clients in steps:
        for k in clients:
            for parameter in parameters[k]:
                parameter.grad = None
        if loss.requires_grad:
            loss.backward()
        adjust()
        optimizer.step(clients)
