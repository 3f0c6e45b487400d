"""Decides what follows a client's failed attempt: another attempt, a larger share, or the end."""

from collections import Counter
from dataclasses import replace

from ray.exceptions import RayError, RayTaskError

from cluster.clients.memory_cap import OverspentError, larger
from fl.errors import ClientFailed
from fl.federation import Job


class Retries:
    """Counts failures by client; one that went over its share gets twice as much, once."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._failures: Counter[int] = Counter()
        self._enlarged: set[int] = set()

    def attempt(self, client: int) -> int:
        """Number of the client's present or next attempt, from 1."""
        return self._failures[client] + 1

    def after(self, job: Job, reason: str, error: Exception | None) -> Job | ClientFailed:
        """The job to try after this failure, or the failure itself if it is final."""
        client = job.client
        attempt = self.attempt(client.id)
        self._failures[client.id] += 1
        if attempt >= self._attempts:
            return give_up(job, f"{reason} (attempt {attempt} of {attempt})", error)
        if not _overspent(error):
            return job
        if client.id in self._enlarged:
            return give_up(job, f"{reason} (with twice the share it had first)", error)
        self._enlarged.add(client.id)
        return replace(job, client=replace(client, request=larger(client.request)))


def give_up(job: Job, reason: str, error: Exception | None) -> ClientFailed:
    """The client's failure, with what it raised as its cause."""
    failed = ClientFailed(job.client.id, job.client.model, reason)
    failed.__cause__ = error
    return failed


def reason_of(error: RayError) -> str:
    """What the client's own code raised, or that its process died."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return f"{type(cause).__name__}: {cause}"
    return f"its process died ({type(error).__name__})"


def _overspent(error: Exception | None) -> bool:
    return isinstance(error, RayTaskError) and isinstance(error.cause, OverspentError)
