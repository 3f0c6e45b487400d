"""The resources that clients ask for: as configured, or else measured on one training step.

There is one request per assignment (a role and a training), for all clients that have it, so that
light ones can share processes and train together.

A step is measured once per model, batch and device: a process of its own runs the client's real
task on a few random images and reports its memory peak and its seconds per sample. The measurements
are saved in the user's cache directory, so only the first run of a model on a machine waits.
"""

import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import cloudpickle
import numpy as np
import torch

from cluster.clients.extensions import add_models, by_value, packed_models
from cluster.clients.memory_cap import CUDA_BYTES
from cluster.hardware.inventory import Inventory
from cluster.hardware.processes import environment, python
from fl.client_code import client_code
from fl.data.datasets import Split
from fl.errors import UserError, unknown
from fl.exchange import ClientNote, Upload
from fl.executor import device_here, input_of, run_jobs
from fl.federation import Client, Job, Request, RunSpec, Training
from fl.json_files import JsonObject
from fl.methods.method import Assignment
from fl.process import return_freed_memory
from fl.resources import ResourcesConfig, ShareConfig
from fl.training import slots
from fl.training.sizes import SIZES
from fl.training.task import trains_in_slots
from fl.whole_files import cache_dir, read_sealed, write_cache

MARGIN = 1.25
"""Factor between the measured peak and what a client gets."""
SLACK_BYTES = 128 * 2**20
"""Bytes added to that: allocators take memory in pieces, and a task may import more modules."""
COHORT = max(SIZES)
"""Light clients train together, so their share is for this many clients, or as many as fit."""
BYTES_PER_PIXEL = 5
"""A shard's images as bytes and as float32."""
TIMED_STEPS = 4
TIMEOUT_S = 600.0
MEASURE = python("cluster.profiling")
"""The command that measures the subjects on its standard input."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A measurement: bytes at the peak, on the device that trains, and time."""

    peak_bytes: int
    seconds_per_sample: float
    in_slots: bool = False
    """Whether the peak is that of a whole wave, and the time each client's part of it."""


@dataclass(frozen=True)
class Subject:
    """What is measured: one training on one run spec, by so many threads."""

    training: Training
    run_spec: RunSpec
    threads: int
    shared: bool = False
    """Whether such clients train together."""


@dataclass(frozen=True)
class Requests:
    """Requests by assignment, and seconds per sample by model as far as they were measured."""

    by_assignment: Mapping[Assignment, Request]
    rates: Mapping[str, float]


def stated(
    assignments: Sequence[Assignment], config: ResourcesConfig, inventory: Inventory
) -> Requests:
    """The requests that the configuration states, with zero for what it leaves open."""
    roles = {assignment.role for assignment in assignments}
    for entry in config.roles:
        if (role := entry.partition(".")[0]) not in roles:
            raise unknown("role in resources.roles", role, roles)
    requests = {}
    for assignment in set(assignments):
        share = config.share(assignment.role, assignment.training.model)
        request = Request(
            cpus=share.cpus,
            gpus=share.gpus or 0,
            memory_bytes=share.memory_bytes or 0,
            shared=share.shared,
        )
        inventory.check(assignment.role, request)
        requests[assignment] = inventory.scaled(request)
    return Requests(requests, {})


def measured(
    assignments: Sequence[Assignment],
    num_samples: Sequence[int],
    run_spec: RunSpec,
    config: ResourcesConfig,
    inventory: Inventory,
    *,
    anew: bool = False,
) -> Requests:
    """The requests that the configuration states; what it leaves open is measured on one step.

    Where there are GPUs their share is measured and main memory is not limited, else main memory
    is measured. Light clients that train in slots there ask for what a whole wave needs.

    Args:
        assignments: of each client.
        num_samples: of each client; a request covers its assignment's largest shard.
        run_spec: the run's.
        config: what was set by hand.
        inventory: this machine.
        anew: measure again what was measured by an earlier run.

    Raises:
        UserError: a step fails, or an assignment needs more than there is.
    """
    plain = stated(assignments, config, inventory).by_assignment
    subjects = {
        a: Subject(a.training, run_spec, request.threads, request.shared)
        for a, request in plain.items()
    }
    steps = measure_steps(subjects.values(), inventory.device, anew=anew)
    requests = {}
    for assignment, request in plain.items():
        share = config.share(assignment.role, assignment.training.model)
        step = steps[subjects[assignment]]
        own = [n for a, n in zip(assignments, num_samples, strict=True) if a == assignment]
        pixels = math.prod(run_spec.inputs.shape) * _samples_together(own, step)
        need = round(MARGIN * (step.peak_bytes + BYTES_PER_PIXEL * pixels))
        request = replace(request, in_waves=step.in_slots and share.gpus != 0)
        requests[assignment] = _completed(request, share, need, inventory)
        inventory.check(
            assignment.role, requests[assignment], measured=requests[assignment] != request
        )
    rates: dict[str, float] = {}
    for assignment, subject in subjects.items():  # alone a model is slower than in a wave
        model, rate = assignment.training.model, steps[subject].seconds_per_sample
        rates[model] = max(rate, rates.get(model, 0.0))
    return Requests(requests, rates)


def _samples_together(num_samples: Sequence[int], step: Step) -> int:
    """Samples in memory together, of clients with so many each: the largest shard, or a wave's,
    of which the GPU has a second copy."""
    if not step.in_slots:
        return max(num_samples)
    return 2 * sum(sorted(num_samples, reverse=True)[: slots.SLOTS])


def _completed(
    request: Request, share: ShareConfig, need_bytes: int, inventory: Inventory
) -> Request:
    """The request, with the measured need where the configuration left the share open."""
    total, once = inventory.memory_bytes, SLACK_BYTES
    if inventory.gpus:
        # A rank of the server stays on the GPU, where CUDA takes as much memory for it.
        total = min(gpu.memory_bytes for gpu in inventory.gpus) - CUDA_BYTES
        once = CUDA_BYTES
    if (share.gpus if inventory.gpus else share.memory_bytes) is not None:
        return request
    if total <= 0:
        raise UserError(
            f"the GPUs of {inventory.source} do not report their memory: set the gpus of each "
            "role, as in resources.classifier.gpus"
        )
    if request.shared and not request.in_waves:
        fair = total * max(len(inventory.gpus), 1) / max(1, inventory.cpus // request.cpus)
        need_bytes *= max(1, min(COHORT, int((fair - once) / need_bytes)))
    if inventory.gpus:
        gpus = math.ceil(100 * (once + need_bytes) / total) / 100
        # A wave that does not fit into a card is tried again by halves.
        return replace(request, gpus=min(gpus, 1.0) if request.in_waves else gpus)
    return replace(request, memory_bytes=once + need_bytes)


def measure_steps(
    subjects: Iterable[Subject], device: str, *, anew: bool = False
) -> dict[Subject, Step]:
    """Looks each subject up in the cache, or measures it now.

    Args:
        subjects: what to measure.
        device: name of the device that trains; part of the cache's keys.
        anew: measure all of them now: what is cached was perhaps measured on a busy machine.

    Raises:
        UserError: a step failed, with its reason.
    """
    cached = _read()
    keys = {subject: _key(subject, device) for subject in subjects}
    missing = [subject for subject, key in keys.items() if anew or key not in cached]
    if missing:
        measured = zip(missing, _in_child(missing), strict=True)
        cached |= {keys[subject]: asdict(step) for subject, step in measured}
        write_cache(cache_file(), json.dumps(cached, indent=1))  # else the next run measures again
    return {subject: Step(**cached[key]) for subject, key in keys.items()}


def _in_child(subjects: list[Subject]) -> list[Step]:
    """Measures in a child process, since the driver itself must not hold a GPU's memory."""
    by_value(type(s.training).__module__ for s in subjects)
    given = pickle.dumps(packed_models()) + cloudpickle.dumps(subjects)
    try:
        done = subprocess.run(
            MEASURE, input=given, capture_output=True, env=environment(), timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise _failed(subjects, f"no answer within {TIMEOUT_S:.0f} s") from None
    steps = [Step(**json.loads(line)) for line in done.stdout.splitlines()]
    if len(steps) < len(subjects):
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1][:300] if lines else "it was killed, probably for want of memory"
        raise _failed(subjects[len(steps) :], reason)
    return steps


def _failed(subjects: list[Subject], reason: str) -> UserError:
    (_, samples), model = _probe(subjects[0], 1), subjects[0].training.model
    return UserError(f"one step of {model} on {samples} samples failed: {reason}")


def measure(subject: Subject) -> Step:
    """Trains on random images in this process: one step for the peak, a few more for the time.

    Light clients that train in slots are measured as a full wave, the others alone.
    """
    # The first step of a process loads and allocates what later steps reuse: it is not measured.
    # Two samples, as BatchNorm has no variance of one.
    job, split = _probing(subject, _probe(subject, 1)[0], 2)
    run_jobs([job], split)
    in_slots = subject.shared and trains_in_slots(job.task, input_of(job, split, device_here()))
    clients = slots.SLOTS if in_slots else 1
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return_freed_memory()  # else the next peak would miss what is reused
    one = _run(subject, 1, clients)
    many = _run(subject, 1 + TIMED_STEPS, clients)
    seconds = max(many.seconds - one.seconds, many.seconds / (1 + TIMED_STEPS))
    training, count = _probe(subject, TIMED_STEPS)
    return Step(
        peak_bytes=clients * (one.peak_bytes or 0),
        seconds_per_sample=seconds / training.work(count),
        in_slots=in_slots,
    )


def _probe(subject: Subject, steps: int) -> tuple[Training, int]:
    return subject.training.probe(steps, subject.run_spec.num_classes)


def _run(subject: Subject, steps: int, clients: int) -> ClientNote:
    """One client's note, of so many that train so many steps together."""
    job, split = _probing(subject, *_probe(subject, steps))
    return Upload(run_jobs([job] * clients, split)[0]).note


def _probing(subject: Subject, training: Training, count: int) -> tuple[Job, Split]:
    stream, run_spec = np.random.default_rng(0), subject.run_spec
    images = run_spec.inputs.stored(count, stream)
    targets = None if run_spec.targets is None else run_spec.targets.example(count).numpy()
    split = Split(images, stream.integers(0, run_spec.num_classes, count), targets=targets)
    request = Request(cpus=subject.threads, gpus=1)
    client = Client(id=0, role="measured", training=training, num_samples=count, request=request)
    job = Job(
        task=training.task,
        client=client,
        run_spec=run_spec,
        indices=np.arange(count),
        broadcast=None,
        payload=None,
    )
    return job, split


def cache_file() -> Path:
    """The file of all measurements."""
    return cache_dir() / "steps"


def _key(subject: Subject, device: str) -> str:
    parts = {
        "training": [type(subject.training).__qualname__, dict(subject.training.speed_settings())],
        "problem": {**asdict(subject.run_spec), "seed": 0},
        "threads": subject.threads,
        "shared": subject.shared,
        "device": device,
        "torch": torch.__version__,
        "code": client_code(subject.training.task, subject.training),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read() -> dict[str, JsonObject]:
    """The measurements of earlier runs; none where the file is missing, damaged or not ours."""
    try:
        found: dict[str, JsonObject] = json.loads(read_sealed(cache_file()) or b"{}")
    except OSError:
        return {}
    return found


if __name__ == "__main__":
    answer = open(os.dup(1), "w")  # noqa: SIM115
    os.dup2(2, 1)  # where a user's model may print from C, or a process of its own
    sys.stdout = sys.stderr  # as this is not buffered, an error's line stays the last
    add_models(pickle.load(sys.stdin.buffer))  # before the subjects, which may be of them
    for subject in pickle.load(sys.stdin.buffer):
        print(json.dumps(asdict(measure(subject))), file=answer, flush=True)
