"""Mixed federations and machines to place them on, for benchmarks/placement.py.

Three classes of clients. The times per sample are nominal: on cores, about what one client of each
takes here (quarter-width VGG-9 on two threads; CNN and CVAE on one, as a second does not help
them); on a GPU, assumed. A client's time does not depend on the others: none exceeds its request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.scheduling.capacity import Bundle
from fl.data.partition import dirichlet_lists
from fl.federation import Request

GB = 10**9
SHARES = {"vgg9": 0.3, "cnn": 0.3, "cvae-small": 0.4}  # of the clients
EPOCHS = {"vgg9": 30, "cnn": 30, "cvae-small": 80}
SAMPLES_PER_CLASS, CLASSES, ALPHA, LEAST_SAMPLES = 6000, 10, 0.5, 10  # as MNIST
MODEL_NOISE, CLIENT_NOISE = 0.3, 0.2  # standard deviations of log seconds


@dataclass(frozen=True)
class Machine:
    """A machine where clients run: its capacity, and each class's request and rate on it."""

    name: str
    bundles: tuple[Bundle, ...]
    requests: dict[str, Request]
    rates: dict[str, float]
    """Seconds per sample and epoch."""


@dataclass(frozen=True)
class Job:
    """One client. The scheduler is given all but `seconds`."""

    client: int
    model: str
    request: Request
    work: int
    seconds: float


def _nodes(gpus: int, *, nodes: int = 1, cores: int = 16) -> Machine:
    many = f"{nodes} nodes of " if nodes > 1 else ""
    node = {"cpus": cores, "gpus": gpus, "memory_bytes": 8 * cores * GB}
    return Machine(
        name=f"{many}{cores} cores, {gpus} GPU{'s' if gpus > 1 else ''}",
        bundles=tuple(Bundle(name=f"node-{k}", **node) for k in range(nodes)),
        requests={
            "vgg9": Request(cpus=2, gpus=0.25, memory_bytes=6 * GB),
            "cnn": Request(cpus=1, gpus=0.1, memory_bytes=3 * GB),
            "cvae-small": Request(cpus=1, gpus=0, memory_bytes=1 * GB),
        },
        rates={"vgg9": 0.15e-3, "cnn": 0.06e-3, "cvae-small": 0.1e-3},
    )


MACHINES = (
    Machine(
        name="2 cores",
        bundles=(Bundle(name="box", cpus=2, gpus=0, memory_bytes=16 * GB),),
        requests={
            "vgg9": Request(cpus=2, gpus=0, memory_bytes=2 * GB),
            "cnn": Request(cpus=1, gpus=0, memory_bytes=1 * GB),
            "cvae-small": Request(cpus=1, gpus=0, memory_bytes=1 * GB),
        },
        rates={"vgg9": 0.55e-3, "cnn": 0.16e-3, "cvae-small": 0.1e-3},
    ),
    _nodes(1),
    _nodes(4),
    _nodes(8, cores=128),
    _nodes(8, cores=128, nodes=8),
)


def federation(machine: Machine, clients: int, seed: int) -> list[Job]:
    """Clients of a Dirichlet partition, assigned to the classes in random order.

    A client takes its nominal time, times an error of its model's rate (which the scheduler can
    learn), times an error of its own (which no scheduler can foresee).
    """
    rng = np.random.default_rng([seed, clients])
    labels = np.repeat(np.arange(CLASSES), SAMPLES_PER_CLASS)
    lists = dirichlet_lists(
        labels, clients, CLASSES, alpha=ALPHA, min_samples=LEAST_SAMPLES, rng=rng
    )
    models = [name for name, share in SHARES.items() for _ in range(round(share * clients))]
    errors = {name: rng.lognormal(0, MODEL_NOISE) for name in SHARES}
    jobs = []
    for client, model in enumerate(rng.permutation(models).tolist()):
        work = len(lists[client]) * EPOCHS[model]
        seconds = work * machine.rates[model] * errors[model] * rng.lognormal(0, CLIENT_NOISE)
        jobs.append(Job(client, model, machine.requests[model], work, seconds))
    return jobs


def crowd(machine: Machine, clients: int, seed: int) -> list[Job]:
    """As :func:`federation`, with more clients than a data set has samples for: sizes are drawn."""
    rng = np.random.default_rng([seed, clients])
    models = rng.choice(list(SHARES), clients, p=list(SHARES.values())).tolist()
    sizes = np.ceil(rng.lognormal(np.log(50), 1, clients)).astype(int).tolist()
    errors = rng.lognormal(0, CLIENT_NOISE, clients).tolist()
    jobs = []
    for client, (model, size, error) in enumerate(zip(models, sizes, errors, strict=True)):
        work = size * EPOCHS[model]
        seconds = work * machine.rates[model] * error
        jobs.append(Job(client, model, machine.requests[model], work, seconds))
    return jobs


def with_largest_request(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, all with the largest request of every kind."""
    requests = [job.request for job in jobs]
    largest = Request(
        cpus=max(request.cpus for request in requests),
        gpus=max(request.gpus for request in requests),
        memory_bytes=max(request.memory_bytes for request in requests),
    )
    return [replace(job, request=largest) for job in jobs]
