"""One way of running many small clients, in a process of its own, as stacked.py starts it:

    python benchmarks/stacked_way.py NAME CLIENTS DATA_ROOT SIZES_FILE

The name is that of one of :func:`ways`; cohort sizes are remembered in the file.
"""

import json
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from hand_cvae import hand_derived

from cluster.hardware.inventory import take_inventory
from cluster.hardware.private_ray import private_ray
from fl.data.datasets import Split, load
from fl.data.shard import Shard
from fl.events import Events
from fl.exchange import ClientNote, Upload
from fl.executor import InProcess
from fl.federation import Client, Executor, Job, Request, RunSpec, Task, TaskInput, TaskOutput
from fl.training.generator import GeneratorConfig
from fl.training.sizes import CohortSizes
from fl.training.task import train_by_recipe

TRAINING = GeneratorConfig(epochs=3, batch_size=64, lr=1e-3)
SAMPLES = 200
BASELINES = ("one by one, one process", "one by one, one process, one thread")
ON_A_CARD = "by hand, one process"
"""For GPUs, whose processes would take turns."""


@dataclass(frozen=True)
class Way:
    """One way to run the clients."""

    name: str
    task: Task
    request: Request
    clients: int
    on_ray: bool
    whole: bool = False
    """Whether the rate includes start-up."""
    forked: bool = False
    """Whether plain processes, one for each core, are forked to run them."""


def alone(inputs: TaskInput) -> TaskOutput:
    """The same training, written plainly in PyTorch: torch.optim's fused Adam, no cohorts."""
    recipe = TRAINING.recipe(inputs)
    optimizer = torch.optim.Adam(recipe.model.parameters(), lr=TRAINING.lr, fused=True)
    for epoch in recipe.epochs:
        for batch in epoch:
            optimizer.zero_grad()
            recipe.losses(recipe.model, batch).mean().backward()
            optimizer.step()
    return TaskOutput(tensors=recipe.upload())


def ways(clients: int) -> list[Way]:
    """All ways; the baselines first."""
    cores = torch.get_num_threads()
    one, shared = Request(cpus=1, gpus=0.1), Request(cpus=1, gpus=0.1, shared=True)
    part = min(clients, max(100, clients // 5))
    ours = replace(shared, in_waves=torch.cuda.is_available())
    here = clients if ours.in_waves else part
    return [
        Way(BASELINES[0], alone, replace(one, cpus=cores), part, on_ray=False),
        Way(BASELINES[1], alone, one, part, on_ray=False),
        Way("plain, forked processes", alone, one, part, on_ray=False, forked=True),
        Way("by hand, forked processes", hand_derived, one, clients, on_ray=False, forked=True),
        Way(ON_A_CARD, hand_derived, one, part, on_ray=False),
        Way("an actor per client", alone, one, min(clients, 8), on_ray=True, whole=True),
        Way("pool of actors, one by one", alone, shared, part, on_ray=True),
        Way("Onefold, one process", train_by_recipe, ours, here, on_ray=False),
        Way("Onefold, pool of actors", train_by_recipe, ours, clients, on_ray=True),
    ]


def main(name: str, clients: int, data_root: Path, sizes: Path) -> None:
    """Runs the clients; prints when the first began and when each finished, as Unix times."""
    (way,) = (way for way in ways(clients) if way.name == name)
    train = load("mnist", data_root, max_train=None, max_test=None).train
    jobs = [job(k, way, len(train.labels)) for k in range(way.clients)]
    began, finished = [], []
    with executor(way, train, CohortSizes(sizes)) as running:
        for _, outcome in running.run(jobs, Events()):
            if isinstance(outcome, Exception):
                raise outcome
            finished.append(time.time())
            began.append(outcome.note.span[0])
    print(json.dumps({"ready": min(began), "finished": finished}))


@contextmanager
def executor(way: Way, train: Split, sizes: CohortSizes) -> Iterator[Executor]:
    """The executor of the jobs: in this process, or on a private Ray cluster."""
    if way.forked:
        yield Forked(train, psutil.cpu_count())
        return
    if way.task in (alone, hand_derived) and not way.on_ray:
        yield Plainly(train)
        return
    if not way.on_ray:
        yield InProcess(train, sizes)
        return
    with private_ray(replace(take_inventory().bundle, cpus=psutil.cpu_count())):
        from cluster.clients.executor import RayExecutor
        from cluster.hardware.bundles import open_bundles

        with open_bundles() as bundles:
            yield RayExecutor(train, bundles, sizes=sizes)


class Plainly:
    """A plain loop over the clients, without Onefold's executor."""

    def __init__(self, train: Split) -> None:
        self._train = train

    def run(self, jobs: Sequence[Job], events: Events) -> Generator[tuple[Job, Upload], None, None]:
        """Yields each job with its upload, packed as ours are."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_num_threads(jobs[0].client.request.threads)
        for job in jobs:
            began = time.time()
            shard = Shard.from_split(self._train, job.indices, job.run_spec.num_classes)
            output = job.task(
                TaskInput(
                    client=job.client,
                    run_spec=job.run_spec,
                    shard=shard,
                    device=device,
                    broadcast={},
                    payload={},
                )
            )
            note = ClientNote(seconds=0.0, span=(began, time.time()))
            yield job, Upload(note.pack(output.tensors))


class Forked:
    """As :class:`Plainly`, in processes that are forked once torch is imported, each with every
    so many-th client."""

    def __init__(self, train: Split, processes: int) -> None:
        self._train, self._processes = train, processes

    def run(self, jobs: Sequence[Job], events: Events) -> Generator[tuple[Job, Upload], None, None]:
        """Yields each job with its upload, as it arrives."""
        context = get_context("fork")
        uploads = context.SimpleQueue()
        shares = [jobs[first :: self._processes] for first in range(self._processes)]
        processes = [
            context.Process(target=self._send, args=(own, uploads), daemon=True) for own in shares
        ]
        for process in processes:
            process.start()
        by_id = {job.client.id: job for job in jobs}
        for _ in jobs:
            client, packed = uploads.get()
            yield by_id[client], Upload(packed)
        for process in processes:
            process.join()

    def _send(self, jobs: Sequence[Job], uploads: "SimpleQueue[tuple[int, bytes]]") -> None:
        for job, packed in Plainly(self._train).run(jobs, Events()):
            uploads.put((job.client.id, bytes(packed)))


def job(k: int, way: Way, samples: int) -> Job:
    """Client k, with its own random images: all clients together may need more than there are."""
    return Job(
        task=way.task,
        client=Client(
            id=k, role="generator", training=TRAINING, num_samples=SAMPLES, request=way.request
        ),
        run_spec=RunSpec.of_images((1, 28, 28), num_classes=10, seed=0),
        indices=np.random.default_rng(k).choice(samples, SAMPLES, replace=False),
        broadcast=None,
        payload=None,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
