"""The server, as a method sees it: its verbs, over ranks in this process or in others.

A verb gives each rank its part of the work, a method of :class:`fl.fusion.rank.Rank`, and puts the
ranks' results together.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import torch
from torch import Tensor, nn

from fl.accuracy import accuracies
from fl.data.shard import Shard
from fl.errors import ended_by
from fl.events import Epoch, Events
from fl.federation import Batch, RunSpec
from fl.fusion.checkpoints import Checkpoints, name_of
from fl.fusion.distillation import TeacherWeights
from fl.fusion.fit import STATE_FORM, FitConfig, FitSpec, Inference, put_aside
from fl.fusion.rank import COLUMNS, Rank, Report
from fl.fusion.synthesis import PIXEL, Draw, Drawn, plan_draws, portions, share_out, still_asked
from fl.models.architectures.cvaes import Decoder
from fl.models.common import digest_of, load_whole
from fl.seeding import in_round
from fl.server import Evaluation, FitResult, Lessons, Loss, Samples

log = logging.getLogger(__name__)
Block = Any
"""A rank's value, or a reference to it: the subclass decides which."""
Value = TypeVar("Value")
Arguments = TypeVarTuple("Arguments")


class Server(ABC):
    """The server, over however many ranks; what it computes does not depend on their number.

    Only it has the test split; methods get accuracies, never test samples. Subclasses define how
    ranks are called.
    """

    run_spec: RunSpec
    device: torch.device
    """Where models are built; the ranks move them to their own devices."""
    events: Events
    round: int
    """The present round; see :mod:`fl.rounds`."""
    size: int
    """Number of ranks."""
    inference: Inference = "fp32"
    """Arithmetic of passes without training: tests, and what teachers are asked."""
    draws_early = False
    """Whether :meth:`sample_early` draws anything: not where ranks start after the clients."""
    decoders_at_once: int | None = 64
    """Decoders that a rank is sent in one call: memory may not have room for all clients'. None for
    one in this process, which reads each as it draws."""
    trains_in_place = False
    """Whether a fit trains the very model that it is given, and not a rank's copy."""
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
        self.run_spec, self.events, self.device, self.round = run_spec, events, device, 1
        self._checkpoints = checkpoints
        self._early: dict[tuple[str, int], Drawn] = {}  # by stream and client
        own = run_spec.targets
        counted = None if own is None else own.counted(test.wanted).double()
        totals = torch.bincount(run_spec.groups(test), counted, minlength=run_spec.num_groups)
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
        """Draws from each client's decoder its row of ``allocation``, (clients, classes).

        Columns ``images`` (N, C, H, W) in [0, 1] and ``labels`` (N,), and ``z`` (N, latent) with
        ``with_z``; ``stream`` names the random numbers.
        """
        early, self._early = self._early, {}
        drawn = still_asked(early, decoders, allocation, stream)
        shares = share_out(plan_draws(list(decoders), allocation), self.size)
        names = ("images", "labels", *(["z"] if with_z else []))
        blocks = self._drawn(shares, decoders, latent, stream, drawn)
        return Samples(
            columns=dict(zip(names, zip(*blocks, strict=True), strict=False)),
            counts=tuple(sum(map(len, draws)) for draws in shares),
            step=PIXEL,
        )

    def _drawn(
        self,
        shares: Sequence[Sequence[Draw]],
        decoders: Mapping[int, Decoder],
        latent: int,
        stream: str,
        drawn: Mapping[int, Drawn],
    ) -> list[tuple[Block, ...]]:
        """Each rank's images, labels and z; decoders are sent to it in portions."""
        most = self.decoders_at_once

        def arguments(draws: Sequence[Draw]) -> tuple[Any, ...]:
            needed = {draw.client: decoders[draw.client] for draw in draws} if most else decoders
            return needed, draws, latent, stream, drawn

        cut = [portions(share, most or max(1, len(share))) for share in shares]
        blocks = [
            self._on_each(Rank.sample, list(map(arguments, portion)), returns=COLUMNS)
            for portion in zip_longest(*cut, fillvalue=[])
        ]
        if len(blocks) == 1:
            return blocks[0]
        of_rank = [tuple(chain.from_iterable(own)) for own in zip(*blocks, strict=True)]
        return self._on_each(Rank.join, of_rank, returns=COLUMNS)

    def sample_early(
        self,
        decoders: Mapping[int, Decoder],
        allocation: np.ndarray,
        *,
        latent: int,
        stream: str = "synthesis",
    ) -> None:
        """Draws what :meth:`sample` will be asked for, from decoders that are there before others.

        The next :meth:`sample` takes what it finds, of each client whose row of the allocation is
        then the same: what it returns is the same with this or without.
        """
        for client, counts in zip(decoders, allocation, strict=True):
            draws = plan_draws([client], counts[None]) if self.draws_early else []
            if draws:
                ((images, _, z),) = self._drawn([draws], decoders, latent, stream, {})
                self._early[stream, client] = Drawn(counts, images, z)

    def apply(self, samples: Samples, column: str, function: Callable[[Tensor], Tensor]) -> Samples:
        """The samples with ``function`` (of some rows, row by row) applied to a column."""
        own = [(function, block) for block in samples.columns[column]]
        applied = samples.with_column(column, self._on_each(Rank.apply, own))
        return replace(applied, step=None) if column == "images" else applied

    def nearest(self, samples: Samples, keep: float) -> Tensor:
        """Indices (M,), ascending, of the share of each class nearest to the class's mean:
        Algorithm 2, to the bits of one rank."""
        images, labels = samples.columns["images"], samples.columns["labels"]
        own = [
            (*block, keep, samples.step, first, len(samples))
            for *block, first in zip(images, labels, samples.starts, strict=True)
        ]
        (indices,) = self._get(self._on_each(Rank.nearest, own)[:1])  # the same on every rank
        return indices

    def take(self, samples: Samples, indices: Tensor) -> Samples:
        """The samples at ``indices``, ascending."""
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
        """Adds ``teacher_logits`` (N, classes), the mean of the teachers', computed once.

        ``samples`` may be tensors in this process. One teacher is held at a time. agreement: on
        each sample a teacher is weighted by how far it agrees with the others
        (:func:`fl.fusion.distillation.agreement_weights`); then all their logits are held at once.

        Raises:
            ValueError: there is no teacher.
        """
        samples = samples if isinstance(samples, Samples) else self.place(samples)
        images, nothing = samples.columns["images"], [None] * self.size
        if weights == "agreement":
            each = [self._asked(teacher, images, nothing) for teacher in teachers]
            _check_teachers(len(each))
            taught = self._on_each(Rank.agree, list(zip(*each, strict=True)))
            return samples.with_column("teacher_logits", taught)
        totals: Sequence[Block] = nothing
        count = 0
        for teacher in teachers:
            totals, count = self._asked(teacher, images, totals), count + 1
        _check_teachers(count)
        mean = partial(_divided, count=count)
        taught = self._on_each(Rank.apply, [(mean, total) for total in totals])
        return samples.with_column("teacher_logits", taught)

    def _asked(
        self, teacher: nn.Module, images: Sequence[Block], totals: Sequence[Block]
    ) -> list[Block]:
        """Each rank's total of logits, with the teacher's for its images added."""
        shared = self._share(teacher)
        pairs = zip(images, totals, strict=True)
        return self._on_each(Rank.ask, [(shared, *pair, self.inference) for pair in pairs])

    def fetch(self, samples: Samples, column: str) -> Tensor:
        """A whole column, brought to this process."""
        blocks = self._get(samples.columns[column])
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def pictures(self, samples: Samples, kept: Tensor) -> dict[str, Tensor]:
        """Fields of :attr:`fl.server.Outcome.synthetic`: all images, and which were ``kept``."""
        return {**{n: self.fetch(samples, n) for n in ("images", "labels")}, "kept": kept}

    def place(self, data: Batch) -> Samples:
        """Makes samples of tensors in this process, divided among the ranks.

        Raises:
            ValueError: they are not of one length.
        """
        lengths = {name: len(tensor) for name, tensor in data.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns must have a row for each sample, got {lengths}")
        parts = {n: tensor.detach().tensor_split(self.size) for n, tensor in data.items()}
        return Samples(
            columns={name: tuple(map(self._share, own)) for name, own in parts.items()},
            counts=tuple(map(len, next(iter(parts.values())))),
        )

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
        """Trains ``model`` in place on samples, on tensors of one length in this process, or on
        lessons' data of each epoch. A model that is no classifier is not ``tested``.

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
        key, reports, checkpoints = "", list[Report](), self._checkpoints
        if checkpoints:
            key = self._fit_key(spec, given)
            reports = checkpoints.load(stage, key)
        loaded = len(reports)
        with ended_by(checkpoints.wait) if checkpoints else nullcontext():
            for report in self._reports(spec, given, reports):
                if report.state:  # the last state is enough
                    reports = [replace(r, state=None, memory=None) for r in reports]
                reports.append(report)
                if checkpoints and report.state:
                    self._save(checkpoints, spec, key, given, reports)
                self._emit(spec, report)
        if reports[-1].state and not (self.trains_in_place and len(reports) > loaded):
            load_whole(model, reports[-1].state.on(self.device)["model"])
        model.eval()
        return FitResult(
            step_losses=[step for report in reports for step in report.losses],
            epochs=[replace(self._evaluation(r.hits), epoch=r.epoch) for r in reports if r.hits],
        )

    def _save(
        self,
        checkpoints: Checkpoints,
        spec: FitSpec,
        key: str,
        given: Samples | Lessons,
        reports: list[Report],
    ) -> None:
        """Saves the last state. Of samples a rank makes only what is due, of lessons all."""
        last = reports[-1]
        if isinstance(given, Samples):
            checkpoints.save(spec.stage, key, reports)
        elif checkpoints.is_due(last, spec.config):
            reports[-1] = replace(last, memory=put_aside(given.memory, self.device))
            checkpoints.save(spec.stage, key, reports)

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
            data.memory = before.memory.values
        first = before.epoch + 1 if before else 1
        for epoch in range(first, spec.config.epochs + 1):
            # The lessons are made from the model as it is now.
            if spec.state and not (self.trains_in_place and epoch > first):
                load_whole(spec.model, spec.state.on(self.device)["model"])
            columns = self.place(data.epoch(epoch)).columns
            part = replace(spec, columns=columns, until=epoch, state_every=0)
            for report in self._fit(part, epoch - 1):
                spec = replace(spec, state=report.state)
                yield report

    def _emit(self, spec: FitSpec, report: Report) -> None:
        if report.undivided and report.epoch == 1:
            why = "%s: %s; so several ranks train it no faster than one"
            log.warning(why, spec.stage, report.undivided)
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
        """Accuracy on the test split, which no method ever sees."""
        return self._evaluation(self._tested(Rank.count_hits, model).tolist())

    def confusion(self, model: nn.Module) -> Tensor:
        """Test samples of each class (row) by the class that the model takes them for (column)."""
        return self._tested(Rank.count_confusion, model)

    def _tested(
        self, count: Callable[[Rank, nn.Module, Inference], Tensor], model: nn.Module
    ) -> Tensor:
        """The sum over the ranks of what they count of the model's answers on the test split."""
        own = [(self._share(model), self.inference)] * self.size
        return torch.stack(self._values(count, own)).sum(0)

    def release(self) -> None:
        """Releases unused GPU memory, which clients need next."""
        self._on_each(Rank.release, [()] * self.size)

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
        self, method: Callable[[Rank, *Arguments], Value], arguments: Sequence[tuple[*Arguments]]
    ) -> list[Value]:
        return self._get(self._on_each(method, arguments))

    def _evaluation(self, hits: list[float]) -> Evaluation:
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


class SingleServer(Server):
    """One rank, in this process."""

    size = 1
    decoders_at_once = None
    trains_in_place = True

    def __init__(
        self,
        run_spec: RunSpec,
        test: Shard,
        events: Events,
        device: torch.device,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        super().__init__(run_spec, test, events, device, checkpoints)
        self.draws_early = device.type == "cpu"  # a GPU is the clients' until they are done
        self._rank = Rank(run_spec, test, device)

    def _on_each(
        self,
        method: Callable[[Rank, *Arguments], Any],
        arguments: Sequence[tuple[*Arguments]],
        returns: int = 1,
    ) -> list[Block]:
        return [method(self._rank, *own) for own in arguments]

    def _get(self, blocks: Sequence[Block]) -> list[Any]:
        return list(blocks)

    def _share(self, value: Value) -> Value:
        return value

    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        return self._rank.fit(spec)


def _check_teachers(count: int) -> None:
    if not count:
        raise ValueError("teach needs at least one teacher")


def _divided(rows: Tensor, count: int) -> Tensor:
    return rows / count
