"""The clients' processes: Ray actors in rooms."""

import gc
from typing import Any

import ray

from cluster.placement import Seat
from cluster.rooms import Rooms
from cluster.share import capped
from fl.data.datasets import Split
from fl.executor import run_jobs
from fl.federation import Job, Request


class ClientActor:
    """A client's process. It sees only the devices that Ray assigned to it."""

    def __init__(self) -> None:
        # What was imported stays: collecting garbage need not look at it again and again.
        gc.freeze()

    def run(self, jobs: list[Job], images: Any, labels: Any) -> list[bytes]:
        """Runs a cohort; the training split comes from the object store without a copy."""
        context = ray.get_runtime_context()
        with capped(jobs[0].client.request):
            return run_jobs(jobs, Split(images, labels), assigned=context.get_assigned_resources())


class Actors:
    """Hires processes and gives them work; the training split lies once in the object store."""

    def __init__(self, train: Split, rooms: Rooms) -> None:
        self._images, self._labels = ray.put(train.images), ray.put(train.labels)
        self._rooms = rooms

    def submit(self, actor: Any, cohort: list[Job]) -> Any:
        """Starts the jobs on the actor and returns the reference to their results."""
        return actor.run.remote(cohort, self._images, self._labels)

    def hire(self, seat: Seat, request: Request) -> Any:
        """A new process in that seat's room, with what the client asks for."""
        return (
            ray.remote(ClientActor)
            .options(
                num_cpus=request.cpus,
                num_gpus=request.gpus if seat.gpu is not None else 0,
                memory=request.memory_bytes or None,
                max_restarts=0,
                scheduling_strategy=self._rooms.strategy(seat.room),
            )
            .remote()
        )
