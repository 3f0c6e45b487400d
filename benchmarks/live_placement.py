"""Runs a federation on real Ray actors that sleep for their time, for benchmarks/placement.py."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from federations import Job, Machine
from schedulers import Scheduler

from cluster.hardware.private_ray import private_ray


@dataclass(frozen=True)
class Live:
    """Measured wall time, in seconds."""

    makespan: float
    startup: dict[int, float]
    """By client: from its placement to the first line of its task, process start included."""


class Sleeper:
    """A client's process."""

    def run(self, seconds: float) -> float:
        """Sleeps; returns when it began, by the machine's clock."""
        began = time.time()
        time.sleep(seconds)
        return began


def run_live(machine: Machine, scheduler: Scheduler, jobs: Sequence[Job]) -> Live:
    """An actor per client with its request as logical resources, ended when it is done."""
    import ray

    (bundle,) = machine.bundles
    by_client = {job.client: job for job in jobs}
    running: dict[Any, tuple[int, Any, float]] = {}
    startup: dict[int, float] = {}
    with private_ray(cpus=bundle.cpus, gpus=bundle.gpus, memory_bytes=bundle.memory_bytes):
        begin = time.time()
        while True:
            while started := scheduler.start():
                job = by_client[started[0]]
                options = {"num_cpus": job.request.cpus, "num_gpus": job.request.gpus}
                actor = ray.remote(Sleeper).options(**options).remote()
                running[actor.run.remote(job.seconds)] = (job.client, actor, time.time())
            if not running:
                return Live(time.time() - begin, startup)
            (done,), _ = ray.wait(list(running), num_returns=1)
            client, actor, placed = running.pop(done)
            startup[client] = ray.get(done) - placed
            ray.kill(actor)
            scheduler.finish(client, by_client[client].seconds)
