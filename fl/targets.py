"""What a model is to answer where that is no class of the sample, with its loss and score."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.errors import UserError

Kind = Literal["values", "labels", "tokens"]
NOT_COUNTED = -100
"""The token of a place that counts neither in losses nor in scores, such as padding."""
LEAST_SPREAD = 1e-12
"""The least variance of values, by which scores are divided."""


@dataclass(frozen=True)
class Targets:
    """Targets that are no classes of whole samples.

    values: numbers, by squared error. labels: several of which each holds or not, by binary
    cross-entropy of logits. tokens: a class at each place, or ``NOT_COUNTED``, by cross-entropy.
    """

    kind: Kind
    outputs: int
    """The last axis of the model's answers: numbers, labels or tokens that there are."""
    shape: tuple[int, ...]
    """Of one sample's target: (outputs,) of values and labels, (places,) of tokens."""
    spread: tuple[float, ...] = ()
    """Of values: the variance of each in the training data."""

    @classmethod
    def found(cls, targets: np.ndarray) -> "Targets":
        """What these are, (N, ...), as :func:`stored_targets` gives them."""
        shape = targets.shape[1:]
        if targets.dtype.kind == "f":
            spread = np.maximum(targets.astype(np.float64).var(0), LEAST_SPREAD)
            return cls("values", shape[0], shape, tuple(map(float, spread)))
        if targets.dtype == np.uint8:
            return cls("labels", shape[0], shape)
        if (targets == NOT_COUNTED).all(1).any():
            raise UserError("a sample's tokens are all -100, which do not count: leave it out")
        return cls("tokens", 1 + int(targets.max(initial=0)), shape)

    @property
    def metric(self) -> str:
        """The name of the mean score: R2 of values, else accuracy, the share that is right."""
        return "R2" if self.kind == "values" else "accuracy"

    def example(self, count: int) -> Tensor:
        """So many targets, of each kind that there is."""
        size = (count, *self.shape)
        if self.kind == "values":
            return torch.linspace(-1, 1, torch.Size(size).numel()).view(size)
        number = torch.arange(torch.Size(size).numel()).view(size)
        return (number % 2).float() if self.kind == "labels" else number % self.outputs

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, (B,), the mean over its numbers, labels or places."""
        if self.kind == "values":
            return F.mse_loss(answers, targets, reduction="none").mean(1)
        if self.kind == "labels":
            logits = F.binary_cross_entropy_with_logits(answers, targets, reduction="none")
            return logits.mean(1)
        # It is 0 where a place is not counted, as -100 is torch's value for that too.
        found = F.cross_entropy(answers.transpose(1, 2), targets, reduction="none").mean(1)
        return found * (targets.shape[1] / (targets != NOT_COUNTED).sum(1))

    def scores(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The score of each sample, (B,), at most 1: of labels and tokens the share that is right;
        of values 1 - (y - answer)^2 / variance, whose mean is R^2 with the training variance."""
        if self.kind == "values":
            spread = torch.tensor(self.spread, device=answers.device)
            return (1 - (answers - targets).square() / spread).mean(1)
        if self.kind == "labels":
            return ((answers > 0) == (targets > 0)).float().mean(1)
        right = (answers.argmax(-1) == targets).float().sum(1)
        return right / (targets != NOT_COUNTED).sum(1)
