"""The server's verbs, over ranks that lie in this process or elsewhere."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.events import Events
from fl.federation import Batch, Problem
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import FitConfig, load_state
from fl.fusion.rank import Rank, Report
from fl.fusion.synthesis import Draw, plan_draws, share_out
from fl.metrics.accuracy import accuracies
from fl.models import Decoder
from fl.seeding import in_round
from fl.server import Evaluation, FitResult, Loss, Samples
from kernels import sharded


class ServerFailed(RuntimeError):
    """A rank of the server failed for good; the message names it."""


class RankedServer(ABC):
    """:class:`fl.server.Server` over ranks; how these are reached is the subclasses' business.

    It alone holds the test split; methods get accuracies, never test samples.
    """

    size: int
    """Number of ranks."""
    restarts = 0
    """How often ranks had to be replaced."""

    def __init__(
        self,
        problem: Problem,
        test: Shard,
        events: Events,
        device: torch.device,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.problem = problem
        self.events = events
        self.device = device
        self.round = 1
        self._checkpoints = checkpoints
        totals = torch.bincount(problem.groups(test), minlength=problem.num_groups)
        self._totals = totals.tolist()

    def sample(
        self, decoders: Mapping[int, Decoder], allocation: np.ndarray, *, latent: int
    ) -> Samples:
        """See :meth:`fl.server.Server.sample`."""
        shares = share_out(plan_draws(list(decoders), allocation), self.size)
        blocks = self._each(
            "sample",
            [(self._part(decoders, draws), draws, latent) for draws in shares],
            returns=2,
        )
        images, labels = zip(*blocks, strict=True)
        counts = tuple(sum(map(len, draws)) for draws in shares)
        return Samples(columns={"images": images, "labels": labels}, counts=counts)

    def apply(self, samples: Samples, column: str, function: Callable[[Tensor], Tensor]) -> Samples:
        """See :meth:`fl.server.Server.apply`."""
        changed = self._each("apply", [(function, block) for block in samples.columns[column]])
        return _with_column(samples, column, changed)

    def nearest(self, samples: Samples, keep: float) -> Tensor:
        """See :meth:`fl.server.Server.nearest`: Algorithm 2, to the bits of one rank."""
        images, labels = samples.columns["images"], samples.columns["labels"]
        classes = self.problem.num_classes
        largest = max(self._values("magnitude", [(block,) for block in images]))
        unit = sharded.unit_for(largest, len(samples))
        pairs = list(zip(images, labels, strict=True))
        sums = sum(self._values("class_sums", [(*pair, unit) for pair in pairs]))
        centroids = sharded.centroids(sums, unit)
        distances = torch.cat(self._values("distances", [(*pair, centroids) for pair in pairs]))
        return sharded.nearest(distances, self.fetch(samples, "labels").cpu(), classes, keep)

    def take(self, samples: Samples, indices: Tensor) -> Samples:
        """See :meth:`fl.server.Server.take`."""
        ends = torch.tensor((0, *samples.counts)).cumsum(0)
        bounds = torch.searchsorted(indices.cpu().contiguous(), ends).tolist()
        own = [
            indices[first:last].cpu() - start
            for first, last, start in zip(bounds, bounds[1:], ends.tolist(), strict=False)
        ]
        names = list(samples.columns)
        arguments = [(i, *(samples.columns[n][rank] for n in names)) for rank, i in enumerate(own)]
        blocks = self._each("take", arguments, returns=len(names))
        columns = dict(zip(names, zip(*blocks, strict=True), strict=True))
        return Samples(columns=columns, counts=tuple(map(len, own)))

    def teach(self, samples: Samples | Batch, teachers: Iterable[nn.Module]) -> Samples:
        """See :meth:`fl.server.Server.teach`. One teacher is held at a time."""
        samples = samples if isinstance(samples, Samples) else self._place(samples)
        images = samples.columns["images"]
        totals: Sequence[Any] = [None] * self.size
        count = 0
        for teacher in teachers:
            shared = self._share(teacher)
            totals = self._each(
                "ask", [(shared, *pair) for pair in zip(images, totals, strict=True)]
            )
            count += 1
        if not count:
            raise ValueError("teach needs at least one teacher")
        return self.apply(
            _with_column(samples, "teacher_logits", totals), "teacher_logits", _Divided(count)
        )

    def fetch(self, samples: Samples, column: str) -> Tensor:
        """See :meth:`fl.server.Server.fetch`."""
        blocks = self._get(samples.columns[column])
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def fit(
        self,
        model: nn.Module,
        data: Samples | Batch,
        *,
        loss: Loss,
        config: FitConfig,
        stage: str,
    ) -> FitResult:
        """Trains ``model`` in place, tests it between epochs; see :class:`fl.fusion.fit.Fit`.

        With checkpoints it goes on from the last one of the same fit, and leaves its own. Each
        round draws other random numbers for the same ``stage``.
        """
        streams = in_round(stage, self.round)
        samples = data if isinstance(data, Samples) else self._place(data)
        key, reports = "", list[Report]()
        if self._checkpoints:
            key = self._fit_key(model, samples, loss, config, streams)
            reports = self._checkpoints.load(stage, key)
        for report in self._fit(model, samples, loss, config, streams, reports):
            if report.state:  # one is enough
                reports = [replace(earlier, state=None) for earlier in reports]
            reports.append(report)
            # First the state: who hears of an epoch may hand it on.
            if self._checkpoints and report.state:
                self._checkpoints.save(stage, key, reports)
            if report.hits is not None:
                self.events.emit(
                    "epoch",
                    stage=stage,
                    round=self.round,
                    epoch=report.epoch,
                    epochs=config.epochs,
                    loss=sum(report.losses) / len(report.losses),
                    accuracy=self._evaluation(report.hits).accuracy,
                )
        if reports[-1].state:
            model.load_state_dict(load_state(reports[-1].state, self.device)["model"])
        model.eval()
        return FitResult(
            step_losses=[step for report in reports for step in report.losses],
            epochs=[self._evaluation(r.hits) for r in reports if r.hits is not None],
        )

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Accuracy on the test split."""
        shared = self._share(model)
        hits = sum(self._values("count_hits", [(shared,)] * self.size))
        return self._evaluation(hits.tolist())

    def release(self) -> None:
        """Gives back what is kept of GPUs' memory: clients need it next."""
        self._each("release", [()] * self.size)

    @abstractmethod
    def _each(
        self, method: str, arguments: Sequence[tuple[Any, ...]], returns: int = 1
    ) -> list[Any]:
        """Calls the method on every rank, each with its own arguments.

        Gives each rank's result, a tuple of them where ``returns`` is not 1, as kept there.
        """

    @abstractmethod
    def _get(self, kept: Sequence[Any]) -> list[Any]:
        """Brings here what ranks keep."""

    @abstractmethod
    def _place(self, data: Batch) -> Samples:
        """Makes tensors that are here into samples."""

    @abstractmethod
    def _share(self, value: Any) -> Any:
        """What to pass to every rank in place of a large value."""

    @abstractmethod
    def _fit(
        self,
        model: nn.Module,
        samples: Samples,
        loss: Loss,
        config: FitConfig,
        stage: str,
        reports: Sequence[Report],
    ) -> Iterator[Report]:
        """The reports that follow after ``reports``, of which the last has a state, if any."""

    def _part(self, decoders: Mapping[int, Decoder], draws: Sequence[Draw]) -> Any:
        """The decoders that a rank needs for its draws."""
        return {draw.client: decoders[draw.client] for draw in draws}

    def _values(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self._get(self._each(method, arguments))

    def _evaluation(self, hits: list[int]) -> Evaluation:
        return accuracies(hits, self._totals, self.problem.num_classes)

    def _fit_key(
        self, model: nn.Module, samples: Samples, loss: Loss, config: FitConfig, stage: str
    ) -> str:
        """A hash of all that determines the fit's result."""
        digest = hashlib.sha256(f"{stage} {self.problem} {config} {_name(loss)}".encode())
        for name, tensor in model.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
        blocks = zip(*samples.columns.values(), strict=True)
        for block in self._values("digest", list(blocks)):
            digest.update(block.encode())
        return digest.hexdigest()


class SingleServer(RankedServer):
    """One rank, in this process."""

    size = 1

    def __init__(
        self,
        problem: Problem,
        test: Shard,
        events: Events,
        device: torch.device,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        super().__init__(problem, test, events, device, checkpoints)
        self._rank = Rank(problem, test, device)

    def _each(
        self, method: str, arguments: Sequence[tuple[Any, ...]], returns: int = 1
    ) -> list[Any]:
        return [getattr(self._rank, method)(*own) for own in arguments]

    def _get(self, kept: Sequence[Any]) -> list[Any]:
        return list(kept)

    def _place(self, data: Batch) -> Samples:
        count = len(next(iter(data.values())))
        return Samples(columns={n: (t,) for n, t in data.items()}, counts=(count,))

    def _share(self, value: Any) -> Any:
        return value

    def _part(self, decoders: Mapping[int, Decoder], draws: Sequence[Draw]) -> Any:
        return decoders  # which may be read one at a time

    def _fit(
        self,
        model: nn.Module,
        samples: Samples,
        loss: Loss,
        config: FitConfig,
        stage: str,
        reports: Sequence[Report],
    ) -> Iterator[Report]:
        state = reports[-1].state if reports else None
        every = self._checkpoints.every if self._checkpoints else None
        return self._rank.fit(model, samples.columns, loss, config, stage, state, every)


class _Divided:
    """Divides rows by a number: a function that can travel."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, rows: Tensor) -> Tensor:
        return rows / self._count


def _with_column(samples: Samples, name: str, blocks: Sequence[Any]) -> Samples:
    return Samples(columns={**samples.columns, name: tuple(blocks)}, counts=samples.counts)


def _name(loss: Loss) -> str:
    """A record's settings, or a function's name: never where it lies in memory."""
    function = getattr(loss, "__qualname__", None)
    return f"{loss.__module__}.{function}" if function else repr(loss)
