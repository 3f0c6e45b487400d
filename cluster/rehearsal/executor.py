"""Runs one client of each kind for one step; the others of its kind send what that one sent."""

from collections.abc import Generator, Sequence
from dataclasses import asdict, replace

import torch

from cluster.profiling.steps import Subject, measure
from cluster.rehearsal.costs import CLIENTS, TEST, Costs
from cluster.rehearsal.shorten import Cut
from fl.client_note import ClientNote
from fl.errors import ClientFailed
from fl.events import ClientStart, Events
from fl.executor import InProcess
from fl.federation import Client, Job, Training
from fl.packed import Header, Packed
from fl.training.task import recipe_of

QUICK_S = 0.5
"""Seconds below which what ran is measured once more."""


class OneOfEachKind:
    """:class:`fl.federation.Executor` in this process.

    A kind is all clients of a map with the same role and training record that all took part before,
    or none of them. What the others of a kind would take is counted by their own samples.

    Args:
        cut: the clients, and what they stand for.
        costs: where seconds and memory of all clients are counted.
        at_once: clients that would compute at once.
        each: clients of a kind that run, where a method tells its clients apart.
    """

    def __init__(self, cut: Cut, costs: Costs, at_once: int, each: int = 1) -> None:
        self._cut, self._costs = cut, costs
        self._at_once, self._each = at_once, each
        self._in_process = InProcess(cut.dataset.train)
        self._rates: dict[Training, float] = {}

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, Packed | ClientFailed], None, None]:
        """Yields each job with what became of it, or of the one of its kind that ran."""
        seconds: list[float] = []
        peaks = [0]
        for kind in _kinds(jobs):
            ran: list[tuple[Job, Packed]] = []
            for job in kind[: self._each]:
                outcome = self._run(job, events)
                if isinstance(outcome, Packed):
                    ran.append((job, outcome))
                yield job, outcome
            for place, job in enumerate(kind if ran else ()):
                like, outcome = ran[place % len(ran)]
                note = ClientNote.of(outcome.content)
                seconds.append(self._expected(job, like, note.seconds))
                peaks.append(note.peak_bytes or 0)
                if place >= self._each:
                    asked = asdict(job.client.request)
                    events.emit(ClientStart(client=job.client.id, requested=asked))
                    yield job, outcome if job.test is None else _all_wrong(job)
        if seconds:
            wall = max(sum(seconds) / self._at_once, *seconds)
            self._costs.add(TEST if jobs[0].test is not None else CLIENTS, wall, max(peaks))

    def _run(self, job: Job, events: Events) -> Packed | ClientFailed:
        """The job in one step; a quick one once more, since the first of a process takes longer."""
        short = replace(job, client=_one_step(job.client))
        ((_, outcome),) = self._in_process.run([short], events)
        if isinstance(outcome, ClientFailed):
            return outcome
        training = job.client.training
        if ClientNote.of(outcome.content).seconds > QUICK_S or training in self._rates:
            return outcome
        if job.task is training.task and training.model not in self._cut.whole.rates:
            subject = Subject(training, job.run_spec, job.client.request.threads)
            self._rates[training] = measure(subject).seconds_per_sample
            return outcome
        ((_, again),) = self._in_process.run([short], events)
        return again

    def _rate(self, training: Training) -> float | None:
        """Seconds per unit of work, where a step was measured by itself."""
        return self._rates.get(training, self._cut.whole.rates.get(training.model))

    def _expected(self, job: Job, like: Job, seconds: float) -> float:
        """Seconds of the whole job, by those of one step of another of its kind."""
        k, whole = job.client.id, self._cut.whole
        if like.test is not None:
            return seconds * len(whole.partition.test[k]) / max(1, len(like.test))
        real, cut = len(whole.partition.train[k]), len(like.indices)
        training = job.client.training
        is_own = job.task is training.task
        if not is_own and recipe_of(job.task) is None:  # a pass over the samples, or less
            return seconds * real / cut
        if is_own and (rate := self._rate(training)) is not None:
            return training.work(real) * rate
        more, step = _remembered_rows(like), _one_step(like.client).training
        return seconds * training.work(real + more) / max(1, step.work(cut + more))


def _kinds(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs by role and training record, those apart whose clients took part before."""
    found: dict[object, list[Job]] = {}
    for job in jobs:
        kind = job.client.role, job.client.training, job.memory is None
        found.setdefault(kind, []).append(job)
    return list(found.values())


def _one_step(client: Client) -> Client:
    """The client with a training that takes one step, or one pass over what it remembers."""
    training, _ = client.training.probe(1, 1)
    return replace(client, training=training)


def _remembered_rows(job: Job) -> int:
    """Images that the client was sent earlier and trains on too."""
    if job.memory is None:
        return 0
    forms = Header.of(job.memory.read().content).forms.values()
    return sum(form.shape[0] for form in forms if form.shape[1:] == job.run_spec.image_shape)


def _all_wrong(job: Job) -> Packed:
    """A client's score without a right answer."""
    hits = torch.zeros(job.run_spec.num_classes, dtype=torch.int64)
    return Packed.in_memory(ClientNote(seconds=0.0).pack({"hits": hits}))
