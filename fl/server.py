"""The server on one device, in this process."""

import torch
from torch import nn

from fl.data.shard import Shard
from fl.events import Events
from fl.federation import Batch, Evaluation, FitResult, Loss, Problem
from fl.fusion.fit import FitConfig, fit
from fl.metrics.accuracy import evaluate


class SingleServer:
    """One rank: :class:`fl.federation.Server` without a process group.

    It alone holds the test split; methods get accuracies, never test samples.
    """

    def __init__(self, problem: Problem, test: Shard, events: Events, device: torch.device) -> None:
        self.problem = problem
        self.device = device
        self.events = events
        self._test_images = test.images.to(device)
        self._test_labels = test.labels.to(device)

    def fit(
        self, model: nn.Module, data: Batch, *, loss: Loss, config: FitConfig, stage: str
    ) -> FitResult:
        """Trains ``model`` in place, tests it after each epoch; see :func:`fl.fusion.fit.fit`."""
        epochs: list[Evaluation] = []

        def after_epoch(epoch: int, mean_loss: float) -> None:
            epochs.append(self.evaluate(model))
            self.events.emit(
                "epoch",
                stage=stage,
                epoch=epoch,
                epochs=config.epochs,
                loss=mean_loss,
                accuracy=epochs[-1].accuracy,
            )

        model.to(self.device)
        step_losses = fit(
            model,
            data,
            loss=loss,
            config=config,
            seed=self.problem.seed,
            stage=stage,
            after_epoch=after_epoch,
        )
        return FitResult(step_losses=step_losses, epochs=epochs)

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Accuracy on the test split; ``model`` is moved to the server's device."""
        return evaluate(
            model.to(self.device), self._test_images, self._test_labels, self.problem.num_classes
        )
