"""The server of a rehearsal: one batch of samples, one batch of each fit, one batch of tests."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from cluster.rehearsal.costs import FUSION, OWN, PREPARATION, TEST, Costs
from cluster.rehearsal.executor import QUICK_S
from cluster.rehearsal.shorten import Cut
from fl.data.shard import Shard
from fl.events import Events
from fl.federation import Batch
from fl.fusion.distillation import TeacherWeights
from fl.fusion.fit import FitConfig
from fl.fusion.single_server import SingleServer
from fl.memory import peak_memory
from fl.models import Decoder
from fl.server import Evaluation, FitResult, Lessons, Loss, Samples

DRAWN = 96
"""Samples, about, that are drawn from all decoders together: a batch, once they are filtered."""
QUICK_STEPS = 5
"""Steps of a fit that are measured after one that was quick."""


class RehearsalServer(SingleServer):
    """:class:`fl.server.Server` with one rank, in this process; it counts what the whole takes."""

    def __init__(self, cut: Cut, events: Events, device: torch.device, costs: Costs) -> None:
        every_test = np.arange(len(cut.dataset.test.labels))
        test = Shard.from_split(cut.dataset.test, every_test, cut.dataset.num_classes)
        super().__init__(cut.whole.run_spec, test, events, device)
        self._cut, self._costs = cut, costs
        self._scale = cut.share_public
        """Rows of the whole for one row here."""

    def sample(
        self,
        decoders: Mapping[int, Decoder],
        allocation: np.ndarray,
        *,
        latent: int,
        stream: str = "synthesis",
        with_z: bool = False,
    ) -> Samples:
        """Draws as evenly as it can from those decoders and classes that the allocation names."""
        few = np.minimum(allocation, max(1, DRAWN // max(1, int((allocation > 0).sum()))))
        self._scale = allocation.sum() / few.sum()
        with self._counted(PREPARATION, self._scale):
            return super().sample(decoders, few, latent=latent, stream=stream, with_z=with_z)

    def sample_early(
        self,
        decoders: Mapping[int, Decoder],
        allocation: np.ndarray,
        *,
        latent: int,
        stream: str = "synthesis",
    ) -> None:
        """Draws nothing early: :meth:`sample` draws other numbers of samples."""

    def apply(self, samples: Samples, column: str, function: Callable[[Tensor], Tensor]) -> Samples:
        """Counted for all rows."""
        with self._counted(PREPARATION, self._scale):
            return super().apply(samples, column, function)

    def nearest(self, samples: Samples, keep: float) -> Tensor:
        """Counted for all rows."""
        with self._counted(PREPARATION, self._scale):
            return super().nearest(samples, keep)

    def teach(
        self,
        samples: Samples | Batch,
        teachers: Iterable[nn.Module],
        weights: TeacherWeights = "equal",
    ) -> Samples:
        """Counted for all rows."""
        with self._counted(PREPARATION, self._scale):
            return super().teach(samples, teachers, weights)

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
        """One batch, or the first lesson."""
        if isinstance(data, Lessons):
            self._costs.repeat("synthesis", config.epochs)
            data = self._first_lesson(data, config)
        whole = self.place(data) if isinstance(data, dict) else data
        steps = config.total_steps(round(len(whole) * self._scale_of(len(whole))))
        batch = self.take(whole, torch.arange(min(len(whole), config.batch_size)))
        self._timed_fit(model, batch, loss, replace(config, epochs=1), stage, steps)
        tests = -(-config.epochs // config.test_every) if tested else 0
        return FitResult(step_losses=[], epochs=[self._evaluated(model, tests)] if tested else [])

    def _timed_fit(
        self,
        model: nn.Module,
        batch: Samples,
        loss: Loss,
        config: FitConfig,
        stage: str,
        steps: int,
    ) -> None:
        """One step, counted as so many; if it is quick a few more, as the first takes longer."""

        def fit(settings: FitConfig, times: float) -> float:
            with self._counted(FUSION, times) as took:
                super(RehearsalServer, self).fit(
                    model, batch, loss=loss, config=settings, stage=stage, tested=False
                )
            return took[0]

        first = fit(config, 0.0)
        if first > QUICK_S:
            self._costs.add(FUSION, first * steps)
        else:
            fit(replace(config, epochs=QUICK_STEPS), steps / QUICK_STEPS)

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Counted for all test samples."""
        return self._evaluated(model, 1)

    def _evaluated(self, model: nn.Module, times: int) -> Evaluation:
        with self._counted(TEST, times * self._cut.share_tested):
            return super().evaluate(model)

    def _first_lesson(self, lessons: Lessons, config: FitConfig) -> Batch:
        """The data of the first epoch; what is made of all data in every epoch grows with it."""
        with self._counted(FUSION, config.epochs * (config.epochs + 1) / 2):
            return lessons.epoch(1)

    def _scale_of(self, rows: int) -> float:
        """Rows of the whole for one of so many: of all clients' own samples, or synthetic."""
        if rows == sum(map(len, self._cut.train)):
            return self._cut.share_samples
        return self._scale

    @contextmanager
    def _counted(self, phase: str, times: float) -> Iterator[list[float]]:
        """Counts what is inside, without other phases in it, so many times; tells its seconds."""
        name, seconds = f"{OWN}{phase}", self.events.phase_seconds
        before, told = seconds.get(name, 0.0), list[float]()
        with peak_memory(self.device) as peak, self.events.phase(name):
            yield told
        told.append(seconds[name] - before)
        self._costs.add(phase, told[0] * times, peak.bytes)
