"""How one client trains, said once: run plainly for one client, or for many as one computation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fl.federation import Batch, TaskInput, TaskOutput
from fl.seeding import in_round, torch_seeded
from fl.training.optimizers import SGD, Adam, Proximal
from fl.wire import Tensors

Epoch = Iterator[Batch]
"""The batches of one pass over a client's data."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One client's training, before it runs.

    What an author writes is for one client and a batch of B samples. That it can also be run for
    many clients at once rests on one rule: ``losses`` gives each sample's loss, (B,), and no
    sample has a part in another's. The rule is checked (:func:`fl.training.stacked.obstacle`).
    """

    model: nn.Module
    """In training mode, on its device, with the weights to start from; it is trained in place."""
    losses: Callable[[nn.Module, Batch], Tensor]
    """Loss of each sample of a batch, (B,)."""
    reduction: Literal["mean", "sum"] = "mean"
    """How a batch's losses become the one that is minimised."""
    optimizer: SGD | Adam | Proximal
    epochs: Iterator[Epoch]
    """Draws from the client's own streams only; read once, each epoch to its end."""
    upload: Callable[[], Tensors]
    """What leaves the client, read when the training is over."""


class MeanLoss:
    """The mean loss of a client's samples over its last epoch."""

    def __init__(self) -> None:
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forgets the epoch before."""
        self._sum: Tensor | float = 0.0
        self._samples = 0

    def add(self, losses: Tensor) -> None:
        """Takes in a batch's losses, (B,)."""
        self._sum = self._sum + losses.detach().sum()
        self._samples += len(losses)

    @property
    def stats(self) -> dict[str, float]:
        """The figure as a task returns it."""
        return {"train_loss": float(self._sum) / max(1, self._samples)}


def one_by_one(inputs: TaskInput, recipe: Recipe) -> TaskOutput:
    """Trains one client by itself, for who has an obstacle to company."""
    parameters = list(recipe.model.parameters())
    # Not torch.optim itself, which takes a process a second and 90 MiB to import.
    optimizer = recipe.optimizer.together([parameters])
    mean_loss = MeanLoss()
    dropout = in_round("local/dropout", inputs.round)
    with torch_seeded(inputs.problem.seed, dropout, inputs.client.id):
        for epoch in recipe.epochs:
            mean_loss.begin_epoch()
            for batch in epoch:
                losses = recipe.losses(recipe.model, batch)
                loss = losses.mean() if recipe.reduction == "mean" else losses.sum()
                for p in parameters:
                    p.grad = None
                loss.backward()
                optimizer.step([0])
                mean_loss.add(losses)
    return TaskOutput(tensors=recipe.upload(), stats=mean_loss.stats)
