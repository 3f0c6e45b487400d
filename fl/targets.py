"""What a model is to answer where that is no class of the sample, with its loss and score."""

import logging
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.errors import UserError
from fl.inputs import is_whole

Kind = Literal["values", "labels", "tokens"]
NOT_COUNTED = -100
"""The token of a place that counts neither in losses nor in scores, such as padding."""
LEAST_SPREAD = 1e-12
"""The least variance of values, by which scores are divided."""
LARGEST_VALUE = 1e4
"""Of a target: what clients answer is taken for a lie far above it (:mod:`fl.receiving`)."""
MARKS = 2**8 - 1, 2**16 - 1
"""What stands for no class in unsigned integers, as in many a map of an image."""
FEW_CLASSES = 1000
"""More are allowed where there are as many samples, since labels count the classes from 0."""

log = logging.getLogger(__name__)


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
            raise UserError("a sample has only tokens of -100, which are ignored: leave it out")
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

    def counted(self, targets: Tensor) -> Tensor:
        """What each sample's score counts in a mean, (B,): of tokens the share of its places that
        count, so that the mean is the share of all these places that is right; else 1."""
        if self.kind == "tokens":
            return (targets != NOT_COUNTED).float().mean(1)
        return torch.ones(len(targets), device=targets.device)


# Labels and targets as they were given.


def stored_targets(labels: np.ndarray) -> dict[str, Any]:
    """``labels``, int64 (N,), by integers, one for each sample; or ``targets`` beside labels of 0.

    Floats, (N,) or (N, D), are values, float32; 0 and 1, (N, L), are L labels, uint8; other
    integers, (N, T), are tokens, int64.

    Raises:
        UserError: they are none of these, or look like something else.
    """
    if labels.ndim == 1 and is_whole(labels):
        _tell_of_mark(labels)
        return {"labels": labels}
    targets: np.ndarray | None = None
    if labels.dtype.kind == "f" and labels.ndim in (1, 2) and np.isfinite(labels).all():
        targets = _values(labels)
    elif labels.ndim == 2 and is_whole(labels) and (labels[labels < 0] == NOT_COUNTED).all():
        targets = labels.astype(np.uint8 if abs(labels).max(initial=0) <= 1 else np.int64)
        _tell_of_mark(labels)
        if targets.dtype == np.uint8 and (targets.sum(1) == 1).all():
            raise UserError(
                "labels with a single 1 in each row look like one-hot classes: give integers, as "
                "by labels.argmax(1)"
            )
    if targets is None or not targets.shape[1]:
        raise UserError(
            f"labels of type {labels.dtype} and shape {labels.shape}; expected "
            "integers below 2**63, one for each sample, or targets: finite floats, (N,) or (N, D), "
            "or integers, (N, L), of 0 and more, or -100 for a place that does not count"
        )
    return {"labels": np.zeros(len(labels), np.int64), "targets": targets}


def _tell_of_mark(labels: np.ndarray) -> None:
    """A warning of a largest class that may stand for none, as those below it are missing."""
    most = labels.max(initial=0)
    below = labels[labels < most].max(initial=0)
    if most in MARKS and below < most // 2:
        log.warning(
            "labels: %d is taken for a class, though no label lies between it and %d: if it means "
            "'no class', leave such samples out, or write -100 for such tokens",
            *(most, below),
        )


def _values(values: np.ndarray) -> np.ndarray:
    """float32 (N, D)."""
    if np.isin(values, (0, 1)).all():
        raise UserError("all targets are the floats 0 or 1: give integers for classes or labels")
    found = np.unique(values)
    if len(found) <= FEW_CLASSES and np.array_equal(found, np.arange(len(found))):
        raise UserError(
            f"all targets are whole floats, 0 to {len(found) - 1}: for classes give integers; for "
            "values standardise them, as (y - mean) / deviation"
        )
    rows = values.reshape(len(values), -1)
    whole = [len(own) for own in map(np.unique, rows.T) if np.array_equal(own, np.round(own))]
    if few := [count for count in whole if 1 < count <= min(20, len(rows) / 10)]:  # as classes are
        line = "targets: %d whole numbers as floats are learned as values; integers are classes"
        log.warning(line, few[0])
    if rows.shape[1] > 1 and rows.min() >= 0 and np.allclose(rows.sum(1), 1, atol=1e-4):
        log.warning(
            "targets: probabilities are learned by squared error, and R2 is computed from the "
            "model's outputs without softmax; for classes give integers"
        )
    if (most := float(np.abs(values).max(initial=0))) > LARGEST_VALUE:
        raise UserError(
            f"targets must be at most {LARGEST_VALUE:g}, got {most:g}: standardise them, as "
            "(y - mean) / deviation"
        )
    return rows.astype(np.float32)
