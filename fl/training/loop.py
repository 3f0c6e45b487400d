"""The one training loop of all clients and of the server."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from fl.training.optimizers import CohortOptimizer


class Step(NamedTuple):
    """The loss that one training step minimises."""

    loss: Tensor
    """A scalar; if it depends on no parameter, there is no backward pass."""
    clients: Sequence[int] = (0,)
    """The clients to update, by position."""


def minimise(
    steps: Iterable[Step],
    parameters: Sequence[Sequence[Tensor]],
    optimizer: CohortOptimizer,
    adjust: Callable[[], None] = lambda: None,
) -> None:
    """Moves the parameters along the gradient of each step's loss.

    Args:
        steps: computes each loss when it is asked for, with the weights after the step before.
        parameters: those of each client.
        optimizer: over the same parameters.
        adjust: called before each update, to clip the gradients or to sum them over ranks.
    """
    for loss, clients in steps:
        for k in clients:
            for parameter in parameters[k]:
                parameter.grad = None
        if loss.requires_grad:
            loss.backward()
        adjust()
        optimizer.step(clients)
