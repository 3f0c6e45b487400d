"""The server's operations, over ranks in this process or in others."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import torch
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.events import Epoch, Events
from fl.federation import Batch, RunSpec
from fl.fusion.checkpoints import Checkpoints, digest_of, name_of
from fl.fusion.distillation import TeacherWeights
from fl.fusion.fit import STATE_FORM, FitConfig, FitSpec, Inference, load_state
from fl.fusion.rank import COLUMNS, Rank, Report
from fl.fusion.synthesis import PIXEL, Draw, Drawn, plan_draws, portions, share_out
from fl.metrics.accuracy import accuracies
from fl.models import Decoder
from fl.seeding import in_round
from fl.server import Evaluation, FitResult, Lessons, Loss, Samples

# What was drawn before all clients were done, until it is asked for.


class EarlyDraws:
    """Draws by stream and client."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], Drawn] = {}

    def add(self, stream: str, client: int, drawn: Drawn) -> None:
        """Holds it until the next :meth:`take`."""
        self._held[stream, client] = drawn

    def take(
        self, clients: Iterable[int], allocation: np.ndarray, stream: str
    ) -> Mapping[int, Drawn]:
        """By client what was drawn as it is asked for now; nothing is held any more.

        Args:
            clients: whose decoders are asked.
            allocation: (clients, classes), what of each.
            stream: the noise's name.
        """
        held, self._held = self._held, {}
        rows = dict(zip(clients, allocation, strict=True))
        return {
            client: drawn
            for (of_stream, client), drawn in held.items()
            if of_stream == stream and client in rows and np.array_equal(drawn.counts, rows[client])
        }


# Has the ranks draw samples: each its share, of decoders that are sent to it in portions.

Block = Any
"""A rank's value, or a reference to it: the server's subclass decides which."""
OnEach = Callable[..., list[Block]]
"""Calls a rank's method on every rank, each with its own arguments; gives their results."""


def sampled(
    shares: Sequence[Sequence[Draw]],
    decoders: Mapping[int, Decoder],
    on_each: OnEach,
    *,
    latent: int,
    stream: str,
    drawn: Mapping[int, Drawn],
    at_once: int | None,
) -> list[tuple[Block, ...]]:
    """Each rank's images, labels and z.

    Args:
        shares: what each rank draws.
        decoders: by client id, each looked up when it is sent or draws.
        on_each: calls a method on every rank.
        latent: size of z.
        stream: names the noise.
        drawn: what was drawn before, by client.
        at_once: decoders that are sent to a rank in one call; None: the mapping itself is.
    """

    def needed(draws: Sequence[Draw]) -> Mapping[int, Decoder]:
        return {draw.client: decoders[draw.client] for draw in draws} if at_once else decoders

    cut = [portions(share, at_once or max(1, len(share))) for share in shares]
    blocks = [
        on_each(
            Rank.sample,
            [(needed(own), own, latent, stream, drawn) for own in portion],
            returns=COLUMNS,
        )
        for portion in zip_longest(*cut, fillvalue=[])
    ]
    if len(blocks) == 1:
        return blocks[0]
    of_rank = [tuple(chain.from_iterable(own)) for own in zip(*blocks, strict=True)]
    return on_each(Rank.join, of_rank, returns=COLUMNS)


# Asks teachers on the server's ranks, one teacher after the other.


def taught_logits(
    teachers: Iterable[nn.Module],
    images: Sequence[Block],
    weights: TeacherWeights,
    on_each: OnEach,
    inference: Inference,
    share: Callable[[nn.Module], Any],
) -> list[Block]:
    """The teachers' logits as one, (N, classes) in a block for each rank; one teacher is held at a
    time.

    Args:
        teachers: at least one.
        images: each rank's.
        weights: equal: their mean. agreement: see :func:`fl.fusion.distillation.agreed_logits`;
            then all teachers' logits are held at once.
        on_each: calls the ranks.
        inference: arithmetic of the teachers' passes.
        share: what to pass them for a teacher.

    Raises:
        ValueError: there is no teacher.
    """
    if weights == "agreement":
        each = [
            on_each(Rank.ask, [(shared, block, None, inference) for block in images])
            for shared in map(share, teachers)
        ]
        _check(len(each))
        return on_each(Rank.agree, list(zip(*each, strict=True)))
    totals: Sequence[Block] = [None] * len(images)
    count = 0
    for teacher in teachers:
        shared = share(teacher)
        own = [(shared, *pair, inference) for pair in zip(images, totals, strict=True)]
        totals = on_each(Rank.ask, own)
        count += 1
    _check(count)
    return on_each(Rank.apply, [(partial(_divided, count=count), total) for total in totals])


def _check(count: int) -> None:
    if not count:
        raise ValueError("teach needs at least one teacher")


def _divided(rows: Tensor, count: int) -> Tensor:
    return rows / count


Value = TypeVar("Value")
Arguments = TypeVarTuple("Arguments")


class RankedServer(ABC):
    """:class:`fl.server.Server` over ranks; subclasses define how these are called.

    Only the server has the test split; methods get accuracies, never test samples.
    """

    size: int
    """Number of ranks."""
    inference: Inference = "fp32"
    """Arithmetic of passes without training: tests, and what teachers are asked."""
    decoders_at_once: int | None = 64
    """Decoders that a rank is sent in one call: memory may not have room for all clients'. None for
    one in this process, which reads each as it draws."""
    restarts = 0
    """How often ranks had to be replaced."""

    def __init__(
        self,
        run_spec: RunSpec,
        test: Shard,
        events: Events,
        device: torch.device,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.run_spec = run_spec
        self.events = events
        self.device = device
        self.round = 1
        self._checkpoints = checkpoints
        self._early = EarlyDraws()
        totals = torch.bincount(run_spec.groups(test), minlength=run_spec.num_groups)
        self._totals = totals.tolist()

    def sample(
        self,
        decoders: Mapping[int, Decoder],
        allocation: np.ndarray,
        *,
        latent: int,
        stream: str = "synthesis",
        with_z: bool = False,
    ) -> Samples:
        """See :meth:`fl.server.Server.sample`."""
        shares = share_out(plan_draws(list(decoders), allocation), self.size)
        blocks = sampled(
            shares,
            decoders,
            self._on_each,
            latent=latent,
            stream=stream,
            drawn=self._early.take(decoders, allocation, stream),
            at_once=self.decoders_at_once,
        )
        names = ("images", "labels", "z")
        columns = dict(zip(names, zip(*blocks, strict=True), strict=True))
        if not with_z:
            del columns["z"]
        counts = tuple(sum(map(len, draws)) for draws in shares)
        return Samples(columns=columns, counts=counts, step=PIXEL)

    def apply(self, samples: Samples, column: str, function: Callable[[Tensor], Tensor]) -> Samples:
        """See :meth:`fl.server.Server.apply`."""
        own = [(function, block) for block in samples.columns[column]]
        applied = samples.with_column(column, self._on_each(Rank.apply, own))
        return replace(applied, step=None) if column == "images" else applied

    def nearest(self, samples: Samples, keep: float) -> Tensor:
        """See :meth:`fl.server.Server.nearest`: Algorithm 2, to the bits of one rank."""
        images, labels = samples.columns["images"], samples.columns["labels"]
        own = [
            (*block, keep, samples.step, first, len(samples))
            for *block, first in zip(images, labels, samples.starts, strict=True)
        ]
        (indices,) = self._get(self._on_each(Rank.nearest, own)[:1])  # the same on every rank
        return indices

    def take(self, samples: Samples, indices: Tensor) -> Samples:
        """See :meth:`fl.server.Server.take`."""
        ends = torch.tensor((*samples.starts, len(samples)), device=indices.device)
        bounds = torch.searchsorted(indices.contiguous(), ends).tolist()
        own = [
            indices[first:last] - start
            for first, last, start in zip(bounds, bounds[1:], ends.tolist(), strict=False)
        ]
        names = list(samples.columns)
        arguments = [(i, *(samples.columns[n][rank] for n in names)) for rank, i in enumerate(own)]
        blocks = self._on_each(Rank.take, arguments, returns=len(names))
        columns = dict(zip(names, zip(*blocks, strict=True), strict=True))
        return replace(samples, columns=columns, counts=tuple(map(len, own)))

    def teach(
        self,
        samples: Samples | Batch,
        teachers: Iterable[nn.Module],
        weights: TeacherWeights = "equal",
    ) -> Samples:
        """See :meth:`fl.server.Server.teach`. One teacher is held at a time."""
        samples = samples if isinstance(samples, Samples) else self.place(samples)
        images = samples.columns["images"]
        taught = taught_logits(
            teachers, images, weights, self._on_each, self.inference, self._share
        )
        return samples.with_column("teacher_logits", taught)

    def fetch(self, samples: Samples, column: str) -> Tensor:
        """See :meth:`fl.server.Server.fetch`."""
        blocks = self._get(samples.columns[column])
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def fit(
        self,
        model: nn.Module,
        data: Samples | Batch | Lessons,
        *,
        loss: Loss,
        config: FitConfig,
        stage: str,
        tested: bool = True,
    ) -> FitResult:
        """Trains ``model`` in place, tests it between epochs; see :class:`fl.fusion.fit.Fit`.

        With checkpoints it goes on from the last one of the same fit, and saves its own. Each
        round draws other random numbers for the same ``stage``.
        """
        given: Samples | Lessons = self.place(data) if isinstance(data, dict) else data
        spec = FitSpec(
            model=model,
            columns=given.columns if isinstance(given, Samples) else {},
            loss=loss,
            config=config,
            stage=stage,
            streams=in_round(stage, self.round),
            tested=tested,
            inference=self.inference,
        )
        key, reports = "", list[Report]()
        if self._checkpoints:
            key = self._fit_key(spec, given)
            reports = self._checkpoints.load(stage, key)
        for report in self._reports(spec, given, reports):
            if report.state:  # the last state is enough
                reports = [replace(r, state=None, memory=None) for r in reports]
            reports.append(report)
            # The state is saved before the event, whose listener may read the checkpoint.
            if self._checkpoints and report.state and self._checkpoints.is_due(report, config):
                self._checkpoints.save(stage, key, reports)
            self._tell(spec, report)
        if reports[-1].state:
            model.load_state_dict(load_state(reports[-1].state, self.device)["model"])
        model.eval()
        return FitResult(
            step_losses=[step for report in reports for step in report.losses],
            epochs=[self._evaluation(r.hits) for r in reports if r.hits is not None],
        )

    def _reports(
        self, spec: FitSpec, data: Samples | Lessons, reports: Sequence[Report]
    ) -> Iterator[Report]:
        """The reports after those in ``reports``, whose last one, if any, has the fit's state."""
        before = reports[-1] if reports else None
        spec = replace(spec, state=before.state if before else None)
        if isinstance(data, Samples):
            every = self._checkpoints.every if self._checkpoints else None
            yield from self._fit(replace(spec, state_every=every), before.epoch if before else 0)
            return
        if before and before.memory is not None:
            data.memory = before.memory
        for epoch in range(before.epoch + 1 if before else 1, spec.config.epochs + 1):
            if spec.state:  # the lessons are made from the model as it is now
                spec.model.load_state_dict(load_state(spec.state, self.device)["model"])
            columns = self.place(data.epoch(epoch)).columns
            part = replace(spec, columns=columns, until=epoch, state_every=1)
            for report in self._fit(part, epoch - 1):
                spec = replace(spec, state=report.state)
                yield replace(report, memory=data.memory)

    def _tell(self, spec: FitSpec, report: Report) -> None:
        if report.hits is not None:
            epoch = Epoch(
                stage=spec.stage,
                round=self.round,
                epoch=report.epoch,
                epochs=spec.config.epochs,
                loss=sum(report.losses) / len(report.losses),
                accuracy=self._evaluation(report.hits).accuracy,
            )
            self.events.emit(epoch)

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Accuracy on the test split."""
        shared = self._share(model)
        own = [(shared, self.inference)] * self.size
        hits = torch.stack(self._values(Rank.count_hits, own)).sum(0)
        return self._evaluation(hits.tolist())

    def confusion(self, model: nn.Module) -> Tensor:
        """Test samples of each class (row) by the class that the model takes them for (column)."""
        shared = self._share(model)
        own = [(shared, self.inference)] * self.size
        return torch.stack(self._values(Rank.count_confusion, own)).sum(0)

    def release(self) -> None:
        """Releases unused GPU memory, which clients need next."""
        self._on_each(Rank.release, [()] * self.size)

    @abstractmethod
    def sample_early(
        self,
        decoders: Mapping[int, Decoder],
        allocation: np.ndarray,
        *,
        latent: int,
        stream: str = "synthesis",
    ) -> None:
        """See :meth:`fl.server.Server.sample_early`."""

    @abstractmethod
    def place(self, data: Batch) -> Samples:
        """Makes samples of tensors in this process, divided among the ranks."""

    @abstractmethod
    def _on_each(
        self,
        method: Callable[[Rank, *Arguments], Any],
        arguments: Sequence[tuple[*Arguments]],
        returns: int = 1,
    ) -> list[Block]:
        """Calls the method on every rank, each with its own arguments.

        Gives each rank's result, a tuple of results where ``returns`` is not 1, as blocks.
        """

    @abstractmethod
    def _get(self, blocks: Sequence[Block]) -> list[Any]:
        """Brings the blocks' values to this process."""

    @abstractmethod
    def _share(self, value: Value) -> Value:
        """What to pass to every rank for a large value: the value itself or a reference."""

    @abstractmethod
    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        """The reports of the epochs after the first ``done``."""

    def _values(
        self,
        method: Callable[[Rank, *Arguments], Value],
        arguments: Sequence[tuple[*Arguments]],
    ) -> list[Value]:
        return self._get(self._on_each(method, arguments))

    def _evaluation(self, hits: list[int]) -> Evaluation:
        return accuracies(hits, self._totals, self.run_spec.num_classes)

    def _fit_key(self, spec: FitSpec, data: Samples | Lessons) -> str:
        """A hash of all that determines the fit's result."""
        about = f"{STATE_FORM} {spec.streams} {self.run_spec} {spec.config} {name_of(spec.loss)}"
        if isinstance(data, Samples):
            blocks = list(zip(*data.columns.values(), strict=True))
            about = " ".join([about, *self._values(Rank.digest, blocks)])
        else:
            about = f"{about} {data.digest()}"
        return digest_of(spec.model.state_dict(), about)
