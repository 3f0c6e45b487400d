"""Runs jobs and sorts what became of them."""

from collections.abc import Sequence

from fl.errors import ClientFailed
from fl.events import Events
from fl.federation import Executor, Job


def uploads(executor: Executor, jobs: Sequence[Job], events: Events | None = None) -> dict:
    """Packed updates by client; the first client that failed for good is raised."""
    packed = {}
    for job, outcome in executor.run(jobs, events or Events()):
        if isinstance(outcome, ClientFailed):
            raise outcome
        packed[job.client.id] = bytes(outcome)
    return packed
