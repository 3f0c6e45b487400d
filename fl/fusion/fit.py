"""The server's training loop, the same for every method: tensors, a loss, epochs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn, optim

from fl.errors import UserError
from fl.federation import Batch, Loss
from fl.seeding import torch_generator, torch_seeded
from fl.validate import at_least, positive


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Training of the global model at the server."""

    epochs: int = 15
    """Epochs over the data."""
    lr: float = 5e-4
    """Learning rate."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimiser; sgd uses the momentum below."""
    momentum: float = 0.9
    """Momentum of sgd."""
    batch_size: int = 64
    """Samples per step."""

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        positive("lr", self.lr)
        at_least("batch_size", self.batch_size, 1)
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum must be in [0, 1), got {self.momentum}")


def fit(
    model: nn.Module,
    data: Batch,
    *,
    loss: Loss,
    config: FitConfig,
    seed: int,
    stage: str,
    after_epoch: Callable[[int, float], None],
) -> list[float]:
    """Trains ``model`` in place, where it and ``data`` are; returns the loss of every step.

    Args:
        model: left in train mode during an epoch, in eval mode at the end.
        data: tensors of one length, on the model's device.
        loss: of a model on a batch, a mean over the batch's samples.
        config: epochs, optimiser, batch size.
        seed: the run's seed; with ``stage`` it names the streams of order and dropout.
        stage: what this fit is called in the run.
        after_epoch: called with the epoch (from 1) and its mean loss; may evaluate the model.
    """
    optimizer = _optimizer(model, config)
    size = len(next(iter(data.values())))
    device = next(iter(data.values())).device
    order = torch_generator(seed, f"{stage}/order")
    losses: list[torch.Tensor] = []
    with torch_seeded(seed, f"{stage}/dropout"):
        for epoch in range(1, config.epochs + 1):
            model.train()
            begin = len(losses)
            shuffled = torch.randperm(size, generator=order).to(device)
            for batch in shuffled.split(config.batch_size):
                step_loss = loss(model, {name: t[batch] for name, t in data.items()})
                optimizer.zero_grad()
                step_loss.backward()
                optimizer.step()
                losses.append(step_loss.detach())
            # One transfer an epoch: reading each step's loss would wait for the device.
            after_epoch(epoch, torch.stack(losses[begin:]).mean().item())
    model.eval()
    return torch.stack(losses).tolist()


def _optimizer(model: nn.Module, config: FitConfig) -> optim.Optimizer:
    if config.optimizer == "adam":
        return optim.Adam(model.parameters(), lr=config.lr, fused=True)
    return optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum, fused=True)
