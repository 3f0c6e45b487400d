"""Runs a client's job: the part that is the same in this process and in a Ray actor."""

import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict

import torch

from fl.data.datasets import Split
from fl.data.shard import Shard
from fl.errors import ClientFailed
from fl.events import Events
from fl.federation import Job, TaskInput
from fl.memory import peak_memory
from fl.wire import pack, unpack


def run_job(job: Job, train: Split, assigned: Mapping[str, float] | None = None) -> bytes:
    """Runs the job on this process's device and packs what the client uploads.

    The number of threads comes from the client's request, since sums over another number of
    threads round differently. ``assigned`` is what a scheduler gave this process; it goes into
    the note beside place, time and peak memory.
    """
    begin = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads_before = torch.get_num_threads()
    torch.set_num_threads(job.client.request.threads)
    try:
        with peak_memory(device) as peak:
            output = job.task(
                TaskInput(
                    client=job.client,
                    problem=job.problem,
                    shard=Shard.from_split(train, job.indices, job.problem.num_classes),
                    device=device,
                    broadcast=unpack(job.broadcast)[0] if job.broadcast else {},
                    payload=unpack(job.payload)[0] if job.payload else {},
                )
            )
    finally:
        torch.set_num_threads(threads_before)
    note = {
        "client": job.client.id,
        "role": job.client.role,
        "model": job.client.model,
        "seconds": round(time.perf_counter() - begin, 4),
        # Several of a cluster's nodes may share a host.
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "device": device.type,
        "device_uuid": device_uuid(device),
        "assigned": dict(assigned) if assigned is not None else None,
        "peak_bytes": peak.bytes,
        "stats": output.stats,
    }
    return pack(output.tensors, note)


def device_uuid(device: torch.device) -> str | None:
    """The UUID of a GPU or MIG device as ``nvidia-smi -L`` spells it; None for the CPU."""
    if device.type != "cuda":
        return None
    gpu = torch.cuda.get_device_properties(device)
    return f"{'MIG' if ' MIG ' in gpu.name else 'GPU'}-{gpu.uuid}"


class InProcess:
    """Runs one job after another in this process."""

    def __init__(self, train: Split) -> None:
        self._train = train

    def run(
        self, jobs: Sequence[Job], events: Events
    ) -> Generator[tuple[Job, bytes | ClientFailed], None, None]:
        """Yields each job with what became of it; see :class:`fl.federation.Executor`."""
        for job in jobs:
            client = job.client
            events.emit("client_start", client=client.id, requested=asdict(client.request))
            outcome: bytes | ClientFailed
            try:
                outcome = run_job(job, self._train)
            except Exception as error:
                outcome = ClientFailed(client.id, client.model, f"{type(error).__name__}: {error}")
                outcome.__cause__ = error
            yield job, outcome
