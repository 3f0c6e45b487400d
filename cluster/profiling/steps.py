"""What one step of a client's training needs: measured once per model, batch and device.

A process of its own runs the client's real task on a few random images and reports its memory peak
and its seconds per sample. The measurements are saved in the user's cache directory, so only the
first run of a model on a machine waits for them.
"""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import cloudpickle
import numpy as np
import torch

from cluster.clients.extensions import add_models, by_value, packed_models
from cluster.hardware.processes import environment, python
from fl.client_code import client_code
from fl.data.datasets import Split
from fl.errors import UserError
from fl.exchange import ClientNote, Upload
from fl.executor import device_here, input_of, run_jobs
from fl.federation import Client, Job, Request, RunSpec, Training
from fl.json_files import JsonObject
from fl.process import return_freed_memory
from fl.training import slots
from fl.training.task import trains_in_slots
from fl.whole_files import cache_dir, read_sealed, write_cache

TIMED_STEPS = 4
TIMEOUT_S = 600.0
MEASURE = python("cluster.profiling.steps")
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
