"""Scores clients on test samples of their own, which no method sees.

A method says how a client's model is built (:data:`Build`). The engine has each client build it,
asks it about the client's held-out samples, and returns right answers by class, never samples.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import mean, pstdev
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from fl.accuracy import answers, scores
from fl.errors import ClientFailed
from fl.events import AttemptFailed, Event, Events
from fl.federation import Executor, Job, TaskInput, TaskOutput
from fl.json_files import JsonObject
from fl.server import Evaluation

Build = Callable[[TaskInput], nn.Module]
"""The model by which a client is scored, on its device: a function at the top of a module."""
LAST_ROUNDS = 10
"""Rounds of which the paper's UA is the mean (FedD2S, Section IV-B)."""


@dataclass(frozen=True, eq=False)
class OwnTests:
    """The clients' own test samples."""

    indices: Sequence[np.ndarray]
    """Of each client, int64, into the train split."""
    counts: Tensor
    """Samples by client and class, (clients, classes): int64, or of targets what they count."""

    @classmethod
    def of(
        cls,
        indices: Sequence[np.ndarray],
        labels: np.ndarray,
        num_classes: int,
        counted: np.ndarray | None = None,
    ) -> Self:
        """The test samples at ``indices`` of a split with these ``labels``, int64 (N,), which count
        ``counted``, float64 (N,), in a mean; default: 1 each."""
        weights = [None if counted is None else counted[own] for own in indices]
        pairs = zip(indices, weights, strict=True)
        rows = [np.bincount(labels[own], weight, minlength=num_classes) for own, weight in pairs]
        return cls(indices, torch.from_numpy(np.stack(rows)))

    @property
    def tested(self) -> set[int]:
        """Ids of the clients that have any."""
        return {k for k, own in enumerate(self.indices) if len(own)}


def count_answers(build: Build, inputs: TaskInput) -> TaskOutput:
    """A client's right answers by class, ``hits`` (classes,) int64, on its own test samples; of
    other targets the sum of their scores, (1,) float64."""
    test, inputs = inputs.test, replace(inputs, test=None)  # as a method may see it
    assert test is not None
    model, targets = build(inputs), inputs.run_spec.targets
    if targets is not None:
        return TaskOutput(tensors={"hits": scores(model, test, targets).double().sum().view(1)})
    labels = test.labels.to(inputs.device)
    right = labels[answers(model, test.images.to(inputs.device)) == labels]
    return TaskOutput(tensors={"hits": torch.bincount(right, minlength=test.num_classes)})


def answered(
    jobs: Sequence[Job], executor: Executor, events: Events, tests: OwnTests
) -> Generator[tuple[Job, Tensor | ClientFailed], None, None]:
    """Each job's right answers by class, checked, or why its client failed.

    Of the events only failed attempts are reported: scoring is no training.
    """

    def relay(event: Event) -> None:
        if isinstance(event, AttemptFailed):
            events.emit(event)

    with closing(executor.run(jobs, Events(relay))) as ended:
        for job, outcome in ended:
            if isinstance(outcome, ClientFailed):
                yield job, outcome
                continue
            k = job.client.id
            try:
                whole = job.run_spec.targets is None
                yield job, checked_hits(outcome, tests.counts[k], whole=whole)
            except ValueError as refused:
                yield job, ClientFailed(k, job.client.model, str(refused))


def checked_hits(answer: Mapping[str, Tensor], totals: Tensor, *, whole: bool = True) -> Tensor:
    """A client's right answers by class, (classes,) int64; ``totals`` are its samples by class.
    Where they are not ``whole``, sums of scores, float64.

    Raises:
        ValueError: they are no counts, or more than it has samples of a class.
    """
    right = answer.get("hits", torch.empty(0))
    if right.shape != totals.shape or right.dtype != (torch.int64 if whole else torch.float64):
        raise ValueError("sent no right answers by class")
    least, most = (0, totals) if whole else (-math.inf, totals * (1 + 1e-6))  # sums are rounded
    if not bool(((right >= least) & (right <= most) & right.isfinite()).all()):
        raise ValueError(f"sent impossible right answers {right.tolist()}")
    return right


def evaluation(hits: Mapping[int, Tensor], tests: OwnTests) -> Evaluation:
    """The clients' accuracies and their mean; per class, of all clients' samples together.

    Args:
        hits: right answers by class, (classes,) int64, of each client that was scored.
        tests: what all clients were to be asked.
    """
    scored = sorted(hits)
    own = {k: hits[k].sum().item() / tests.counts[k].sum().item() for k in scored}
    right = torch.stack([hits[k] for k in scored]).sum(0)
    pairs = zip(right.tolist(), tests.counts[scored].sum(0).tolist(), strict=True)
    return Evaluation(
        accuracy=mean(own.values()),
        per_class=tuple(h / n if n else None for h, n in pairs) if len(right) > 1 else (),
        per_client=tuple(own.get(k) for k in range(len(tests.indices))),
    )


def mean_of(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The mean of each figure; None where no evaluation has it."""

    def means(columns: Iterable[tuple[float | None, ...]]) -> tuple[float | None, ...]:
        there = ([v for v in column if v is not None] for column in columns)
        return tuple(mean(values) if values else None for values in there)

    return Evaluation(
        accuracy=mean(e.accuracy for e in evaluations),
        per_class=means(zip(*(e.per_class for e in evaluations), strict=True)),
        per_domain=means(zip(*(e.per_domain for e in evaluations), strict=True)),
    )


def own_evaluation(found: Mapping[int, Evaluation], num_clients: int, tested: str) -> Evaluation:
    """The evaluation of clients' own models from that of each on the whole test split, by id.

    ``personal``: the mean, and every client's accuracy. ``domain``: of client k on domain k, and
    the mean of these. None for a client that was not evaluated.
    """
    everyone = mean_of(list(found.values()))
    each = [found.get(k) for k in range(num_clients)]
    if tested == "personal":
        return replace(everyone, per_client=tuple(e.accuracy if e else None for e in each))
    domains = tuple(e.per_domain[k] if e else None for k, e in enumerate(each))
    there = [accuracy for accuracy in domains if accuracy is not None]
    return replace(everyone, accuracy=mean(there), per_domain=domains)


def figures(evaluations: Sequence[Evaluation]) -> JsonObject:
    """What a result says of clients that were scored, from the evaluations round by round.

    ``client_accuracy`` by client id after the last round (None: not scored, then in ``untested``);
    ``client_scores`` with their mean, their standard deviation and the mean of the worst tenth, at
    least one client; ``ua``, the mean over clients and the last ten rounds. Nothing if clients were
    not scored.
    """
    last = evaluations[-1].per_client
    if not last:
        return {}
    scores = sorted(accuracy for accuracy in last if accuracy is not None)
    return {
        "ua": mean(e.accuracy for e in evaluations[-LAST_ROUNDS:]),
        "client_accuracy": list(last),
        "client_scores": {
            "mean": mean(scores),
            "spread": pstdev(scores),
            "worst_tenth": mean(scores[: max(1, len(scores) // 10)]),
        },
        "untested": [k for k, accuracy in enumerate(last) if accuracy is None],
    }
