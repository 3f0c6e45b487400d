"""Runs clients' jobs on Ray: each client an actor of its own, with its own resource request."""

from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.inventory import Inventory
from fl.data.datasets import Split
from fl.events import Events
from fl.executor import ClientFailed, run_job
from fl.federation import Job, Request


class ClientActor:
    """One client's process. It sees only the devices that Ray assigned to it."""

    def run(self, job: Job, images: Any, labels: Any) -> bytes:
        """Runs the job; the training split comes from the object store without a copy."""
        return run_job(job, Split(images, labels))


class RayExecutor:
    """Starts an actor per client as room allows, and ends it when its job is done.

    Which clients run at once has no influence on what they compute.
    """

    def __init__(self, train: Split, inventory: Inventory, max_actors: int | None) -> None:
        self._images, self._labels = ray.put(train.images), ray.put(train.labels)
        self._inventory = inventory
        self._max_actors = max_actors

    def run(self, jobs: Sequence[Job], events: Events) -> Iterator[tuple[Job, bytes]]:
        """Yields each job with its packed result; see :class:`fl.federation.Executor`."""
        waiting = list(jobs)
        running: dict[Any, tuple[Job, Any]] = {}
        try:
            while waiting or running:
                while waiting and self._fits(waiting[0], running):
                    job = waiting.pop(0)
                    events.emit("client_start", client=job.client.id)
                    actor = _start(self._inventory.scaled(job.client.request))
                    result = actor.run.remote(job, self._images, self._labels)
                    running[result] = (job, actor)
                done, _ = ray.wait(list(running), num_returns=1)
                job, actor = running.pop(done[0])
                packed = _result(done[0], job)
                ray.kill(actor)
                yield job, packed
        finally:
            for _, actor in running.values():
                ray.kill(actor)

    def _fits(self, job: Job, running: dict[Any, tuple[Job, Any]]) -> bool:
        """Whether an actor more finds room. Actors beyond it would only wait in Ray's queue."""
        if self._max_actors is not None and len(running) >= self._max_actors:
            return False
        held = [self._inventory.scaled(j.client.request) for j, _ in running.values()]
        wanted = self._inventory.scaled(job.client.request)
        cpus = sum(r.cpus for r in held) + wanted.cpus
        gpus = sum(r.gpus for r in held) + wanted.gpus
        return cpus <= self._inventory.cpus and gpus <= self._inventory.gpus


def _start(request: Request) -> Any:
    return ray.remote(ClientActor).options(num_cpus=request.cpus, num_gpus=request.gpus).remote()


def _result(reference: Any, job: Job) -> bytes:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        raise ClientFailed(job, f"{type(cause).__name__}: {cause}") from error
    except RayError as error:
        raise ClientFailed(job, " ".join(str(error).split())) from error
