"""Cohorts: which clients train as one computation, and how many at a time."""

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch

from fl.exchange import ClientNote
from fl.federation import Job
from fl.process import has_gpu
from fl.training.slots import SLOTS
from fl.training.task import has_fitted_slots, trains_in_cohorts
from fl.whole_files import read_sealed, write_cache

SIZES = (1, 2, 4, 8, 16, 32)
"""Cohort sizes that are tried on cores."""
ON_GPU = (8, 32)
"""And on a GPU, of trainings that do not fit into slots; the others train in waves. Of those that
train side by side 32 are eight after eight, and take no more memory."""
TRIALS = 3
"""Cohorts timed of each size. The quickest counts, since the first one has to warm up."""
NO_GAIN = 1.1
"""A size this much slower than the best one ends the search."""
AS_GOOD = 1.03
"""A smaller cohort this much slower than the best one is preferred: it fills the cores evenly."""
FAILURES = 2
"""A size of which so many cohorts did not fit into memory is not tried again."""
IN_VAIN = 2
"""So many sizes in turn that are hardly quicker than a smaller one end the search too: the uploads
of a cohort are in memory together, and larger cohorts would only take more of it."""


def groups(jobs: Iterable[Job]) -> list[deque[Job]]:
    """Groups of jobs that may train together, each with its longest job first.

    Light clients, with a shared request, may if they have the same task, training record and
    request. Every other client is a group by itself.
    """
    found: dict[object, list[Job]] = {}
    for job in jobs:
        client = job.client
        kind = (job.task, client.training, client.request) if client.request.shared else client.id
        found.setdefault(kind, []).append(job)
    return [deque(sorted(group, key=work, reverse=True)) for group in found.values()]


def take(group: deque[Job], size: int) -> list[Job]:
    """Takes the next cohort of at most ``size`` from a group."""
    return [group.popleft() for _ in range(min(size, len(group)))]


def work(job: Job) -> int:
    """Samples passed through the model, by which a client's time is estimated."""
    return job.client.training.work(job.client.num_samples)


def work_together(jobs: Sequence[Job]) -> int:
    """The same of clients of one model who run one after another, in cohorts, or as a wave, which
    takes as long with one client as with its slots full."""
    if jobs[0].client.request.in_waves:
        return SLOTS * max(map(work, jobs))
    return sum(map(work, jobs))


class CohortSizes:
    """The quickest cohort size of each kind of training, learned from the cohorts that ran.

    A client's upload does not depend on the size of its cohort, so trying costs no extra work.

    Args:
        cache: a file in which to remember the sizes, by device; None for nowhere.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._trials: dict[str, dict[int, list[float]]] = {}
        self._peaks: dict[str, dict[int, int]] = {}
        self._chosen: dict[str, int] = _read(cache) if cache else {}
        self._fits: dict[str, int] = {}
        """Sizes of kinds of which a cohort did not fit into memory."""
        self._overspent: Counter[tuple[str, int]] = Counter()

    def next(self, job: Job) -> int:
        """How many clients of this kind should train together next."""
        if not _trains_in_cohorts(job):
            return 1
        size, kind = SLOTS, _kind(job)
        if not _in_waves(job):
            size = self._chosen.get(kind) or self._to_try(job) or self._best(kind)
        return min(size, self._fits.get(kind, size))

    def overspent(self, job: Job, size: int) -> None:
        """Records that a cohort of so many, two or more, did not fit into memory. The next ones of
        this kind have half as many clients. What did not fit may have been one client's many
        samples, so each size is tried twice."""
        fits = 1 << ((size - 1).bit_length() - 1)
        self._fits[_kind(job)] = fits
        self._overspent[_kind(job), 2 * fits] += 1

    def knows(self, job: Job) -> bool:
        """Whether this kind of training has been tried out, or needs no trials."""
        return not _trains_in_cohorts(job) or _in_waves(job) or _kind(job) in self._chosen

    def learn(self, cohort: Sequence[Job], notes: Sequence[ClientNote]) -> None:
        """Records how long a cohort took, and the memory that it needed at its peak; nothing where
        some client has no readable note."""
        if not _trains_in_cohorts(cohort[0]):
            return
        size, kind = len(cohort), _kind(cohort[0])
        self._grow(kind, max((note.cohort for note in notes), default=0))
        if self.knows(cohort[0]) or size not in _sizes(cohort[0]) or len(notes) < size:
            return
        rate = sum(note.seconds for note in notes) / sum(map(work, cohort))
        self._trials.setdefault(kind, {}).setdefault(size, []).append(rate)
        self._peaks.setdefault(kind, {})[size] = sum(note.peak_bytes or 0 for note in notes)
        if self._to_try(cohort[0]) is None:
            self._chosen[kind] = self._best(kind)
            self._remember()

    def _grow(self, kind: str, size: int) -> None:
        """Where a cohort of that size fitted, tries the larger ones again."""
        fits = self._fits.get(kind)
        if fits and size >= fits:
            while fits < SLOTS and self._overspent[kind, 2 * fits] < FAILURES:
                fits *= 2
            self._fits[kind] = fits

    def _to_try(self, job: Job) -> int | None:
        """The smallest size that lacks trials; None once no larger one can be a gain."""
        kind, share_bytes = _kind(job), job.client.request.memory_bytes
        trials, peaks = self._trials.get(kind, {}), self._peaks.get(kind, {})
        quickest, in_vain = float("inf"), 0
        for size in _sizes(job):
            if share_bytes and 2 * peaks.get(size // 2, 0) > share_bytes:
                return None
            if len(trials.get(size, [])) < TRIALS:
                return size
            seconds = min(trials[size])
            in_vain = 0 if AS_GOOD * seconds < quickest else in_vain + 1
            if seconds > NO_GAIN * quickest or in_vain == IN_VAIN:
                return None
            quickest = min(quickest, seconds)
        return None

    def _best(self, kind: str) -> int:
        """The smallest size that is about as fast as the fastest."""
        rates = {size: min(trials) for size, trials in self._trials[kind].items()}
        return min(size for size, rate in rates.items() if rate <= AS_GOOD * min(rates.values()))

    def _remember(self) -> None:
        if self._cache:
            write_cache(self._cache, json.dumps(self._chosen, indent=2))


def _read(cache: Path) -> dict[str, int]:
    """The sizes that earlier runs learned; none where the file is missing or damaged."""
    try:
        learned = json.loads(read_sealed(cache) or b"{}")
        return {kind: size for kind, size in learned.items() if size in SIZES}
    except (OSError, ValueError, AttributeError):
        return {}


def _kind(job: Job) -> str:
    training = dict(job.client.training.speed_settings())
    run_spec = (asdict(job.run_spec.inputs), job.run_spec.outputs)
    return json.dumps([_device(), training, run_spec, job.client.request.threads], sort_keys=True)


def _sizes(job: Job) -> tuple[int, ...]:
    on_gpu = job.client.request.gpus > 0 or has_gpu()
    return ON_GPU if on_gpu else SIZES


def _in_waves(job: Job) -> bool:
    """Whether it was measured to train so, or others of its kind have trained so here."""
    training, asked = job.client.training, job.client.request.in_waves
    here = has_gpu() and has_fitted_slots(job.task, training, job.run_spec)
    return asked or here


def _trains_in_cohorts(job: Job) -> bool:
    return job.client.request.shared and trains_in_cohorts(job.task)


@lru_cache
def _device() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"
