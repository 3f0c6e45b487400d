"""Checks with real clients: a shared GPU, the distance filter's kernel, and a memory cap."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cluster.checks.check import Check, CheckFailed
from cluster.checks.federation import job, require_gpu
from cluster.clients.memory_cap import OverspentError
from cluster.scheduling.capacity import Bundle
from fl.client_note import ClientNote
from fl.errors import ClientFailed
from fl.events import Events
from fl.federation import Executor, Job, Request, TaskInput, TaskOutput
from fl.report.words import size
from kernels import nearest_to_centroid
from kernels.backends import resolve

SHARE_BYTES = 256 * 2**20
"""Main memory of a client, where there is no GPU."""
CLASSES, ROWS, FEATURES, KEEP = 10, 4000, 784, 0.7


@dataclass(frozen=True, kw_only=True)
class ClientPool:
    """Where the clients of the checks run."""

    executor: Executor
    """Gives a client one attempt, and keeps its process for the next client."""
    bundles: Sequence[Bundle]
    """What the executor has to give."""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(bundle.gpus for bundle in self.bundles)

    def request(self, share: float) -> Request:
        """That share of a GPU, or memory where there is none; and cores for two clients a GPU."""
        of_two = [b.cpus / (2 * max(1, b.gpus)) for b in self.bundles if b.gpus or not self.gpus]
        cpus = int(100 * min(1.0, *of_two)) / 100
        if self.gpus:
            return Request(cpus=cpus, gpus=share)
        return Request(cpus=cpus, gpus=0, memory_bytes=SHARE_BYTES)


def shared_device(pool: ClientPool) -> str:
    """Two clients train at once on each GPU, or on the cores, in a process each."""
    request, count = pool.request(0.5), 2 * max(1, pool.gpus)
    notes = _all_end(pool, [job(k, trains, request) for k in range(count)])
    processes = len({(note.node, note.stats["process"]) for note in notes})
    if processes < count:
        raise CheckFailed(f"{count} clients had no more than {processes} processes")
    return f"{count} clients trained on {_device(pool, notes, each=2)}, in {count} processes"


def trains(inputs: TaskInput) -> TaskOutput:
    """Trains as any client does, and tells its process."""
    if inputs.client.request.gpus:
        require_gpu(inputs.device)
    output = inputs.client.training.task(inputs)
    return replace(output, stats={**output.stats, "process": float(os.getpid())})


def distance_filter(pool: ClientPool) -> str:
    """The fast backend keeps the reference's samples, on each GPU or on the cores."""
    request = pool.request(1.0)
    notes = _all_end(pool, [job(k, filters, request) for k in range(max(1, pool.gpus))])
    backend = "triton" if all(note.stats["triton"] for note in notes) else "torch"
    kept, device = int(notes[0].stats["kept"]), _device(pool, notes, each=1)
    return f"{backend} keeps the reference's {kept} of {ROWS} samples on {device}"


def filters(inputs: TaskInput) -> TaskOutput:
    """Filters on this client's device, and by the reference on the CPU."""
    if inputs.client.request.gpus:
        require_gpu(inputs.device)
    samples, labels = _spread_out()
    device, backend = inputs.device, resolve("auto", inputs.device)
    there = samples.to(device), labels.to(device)
    kept = nearest_to_centroid(*there, CLASSES, KEEP, backend=backend).indices.cpu()
    expected = nearest_to_centroid(samples, labels, CLASSES, KEEP, backend="reference").indices
    if not torch.equal(kept, expected):
        wrong = len(set(kept.tolist()) ^ set(expected.tolist()))
        raise CheckFailed(
            f"the {backend} backend on {_device_name(device)} differs from the reference in "
            f"{wrong} of {ROWS} samples"
        )
    stats = {"kept": float(len(kept)), "triton": float(backend == "triton")}
    return TaskOutput(tensors={"kept": kept}, stats=stats)


def memory_cap(pool: ClientPool) -> str:
    """A client that takes more than its share is stopped, and the one beside it trains."""
    request = pool.request(0.25)
    jobs = [job(0, overspends, request), job(1, trains, request)]
    ended = pool.executor.run(jobs, Events())
    outcomes = {job.client.id: outcome for job, outcome in ended}
    overspent, neighbour = outcomes[0], outcomes[1]
    if isinstance(neighbour, ClientFailed):
        raise _failure(neighbour)
    if not isinstance(overspent, ClientFailed):
        raise CheckFailed("a client went over its share of memory, and nothing stopped it")
    if not overspent.reason.startswith(OverspentError.__name__):
        raise _failure(overspent)
    share = f"{request.gpus:g} of a GPU" if request.gpus else size(request.memory_bytes)
    return f"a client that went over its {share} was stopped, its neighbour trained on"


def overspends(inputs: TaskInput) -> TaskOutput:
    """Takes twice its share of memory, or, of a GPU, what CUDA itself needs more than its share."""
    request = inputs.client.request
    wanted = 2 * request.memory_bytes
    if request.gpus:
        require_gpu(inputs.device)
        free, total = torch.cuda.mem_get_info()
        wanted = int(request.gpus * total)
        if wanted > free:
            raise CheckFailed(
                f"others hold all but {size(free)} of the GPU's {size(total)}",
                "see in nvidia-smi whose processes they are, or ask for a GPU of your own",
            )
    torch.empty(wanted, dtype=torch.int8, device=inputs.device)
    return trains(inputs)


def _all_end(pool: ClientPool, jobs: Sequence[Job]) -> list[ClientNote]:
    """The clients' notes; raises `CheckFailed` for one that failed."""
    notes = []
    for _, outcome in pool.executor.run(jobs, Events()):
        if isinstance(outcome, ClientFailed):
            raise _failure(outcome)
        notes.append(ClientNote.of(outcome.content))
    return notes


def _failure(failed: ClientFailed) -> CheckFailed:
    """What a client's only attempt failed by."""
    cause = getattr(failed.__cause__, "cause", failed.__cause__)  # what Ray's error wraps
    return cause if isinstance(cause, CheckFailed) else CheckFailed(failed.reason)


def _device(pool: ClientPool, notes: Sequence[ClientNote], *, each: int) -> str:
    """What they ran on; raises `CheckFailed` unless that is every GPU, with ``each`` clients."""
    if not pool.gpus:
        return "the cores"
    clients = Counter(note.device_uuid for note in notes)
    if sorted(clients.values()) != [each] * pool.gpus:
        raise CheckFailed(f"clients that should be on {pool.gpus} GPUs were on {len(clients)}")
    return "the GPU" if pool.gpus == 1 else f"each of {pool.gpus} GPUs"


def _spread_out() -> tuple[Tensor, Tensor]:
    """Samples (ROWS, FEATURES) and labels (ROWS,), whose distances differ by more than rounding."""
    stream = torch.Generator().manual_seed(0)
    radii = torch.linspace(0.5, 1.5, ROWS)[torch.randperm(ROWS, generator=stream)]
    directions = torch.randn(ROWS, FEATURES, generator=stream)
    samples = radii[:, None] * torch.nn.functional.normalize(directions, dim=1)
    return samples, torch.randint(CLASSES, (ROWS,), generator=stream)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


FILTER = Check(
    name="distance filter",
    run=distance_filter,
    advice="Triton has to be the version that PyTorch came with, and needs a C compiler (gcc); "
    "a GPU that still computes wrongly is not to be trusted",
    timeout_s=90.0,
)
CHECKS = (
    Check(
        name="shared device",
        run=shared_device,
        advice="--max-actors 1 has clients run one at a time; for several on a GPU, its compute "
        "mode has to be Default (nvidia-smi -q -d COMPUTE)",
        timeout_s=40.0,
    ),
    FILTER,
    Check(
        name="memory cap",
        run=memory_cap,
        advice="where a client's memory is not limited, one can end all others: have few at once, "
        "by --max-actors",
        timeout_s=40.0,
    ),
)
