"""The user's own figures of the global model."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import isclose
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cluster.run.prepare import Prepared
from fl.config import RunConfig
from fl.data.shard import Shard
from fl.errors import UserError, reason_of
from fl.models import copied
from fl.seeding import streams_restored
from fl.training.classifier import ClassifierConfig, starting_classifier

log = logging.getLogger(__name__)
Metric = Callable[[nn.Module, Tensor, Tensor], float]
"""A figure of the global model, of test samples (N, ...) and labels (N,) or targets (N, D)."""


def on_test(
    metrics: Mapping[str, Metric], prepared: Prepared, run: RunConfig[Any]
) -> dict[str, Callable[[nn.Module], float]]:
    """The metrics as figures of a model, on what the run's accuracy is of. Each is tried on an
    untrained one, before the run begins.

    Raises:
        UserError: a metric is no function, fails, or gives no number.
    """
    if not metrics:
        return {}
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise UserError("metrics: expected a mapping of names to functions")
    test = prepared.dataset.test
    if run.data.validation and run.scores_clients:  # then the clients' own hold it
        test = prepared.dataset.train.take(np.concatenate(prepared.partition.test))
    every = np.arange(len(test.labels))
    shard = Shard.from_split(test, every, prepared.dataset.num_classes)

    def figure(name: str, model: nn.Module, wanted: Tensor = shard.wanted) -> float:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        # It is given copies, as it may change them.
        own, given = copied(model).eval(), partial(Tensor.to, device=device, copy=True)
        try:
            with torch.no_grad(), streams_restored():
                return float(metrics[name](own, given(shard.images), given(wanted)))
        except Exception as error:
            reason = f"{type(error).__name__}: {reason_of(error)}"
            raise UserError(f"metric {name} must give one number, but fails: {reason}") from None

    figures: dict[str, Callable[[nn.Module], float]]
    figures = {name: partial(figure, name) for name in metrics}
    trainings = (member.training for member in prepared.members)
    training = next((own for own in trainings if isinstance(own, ClassifierConfig)), None)
    if training is not None:
        model = starting_classifier(training, prepared.run_spec)
        for name in figures:
            figure(name, model)
            if shard.wanted.is_floating_point() and _mixes_up(partial(figure, name, model), shard):
                log.warning(
                    "metric %s is the same whichever target is whose: targets are (N, D) as the "
                    "answers are, so leave squeeze() out",
                    name,
                )
    return figures


def _mixes_up(figure: Callable[[Tensor], float], shard: Shard) -> bool:
    """Whether a figure depends on the targets, but not on which of them is whose."""
    wanted = shard.wanted
    with suppress(UserError):  # it may refuse targets that are all alike
        found, turned, alike = map(figure, (wanted, wanted.flip(0), wanted[:1].expand_as(wanted)))
        return isclose(found, turned, rel_tol=1e-5) and not isclose(found, alike, rel_tol=1e-5)
    return False
