"""The requests of clients: what the configuration states, and for the rest what was measured.

There is one request per assignment (a role and a training), for all clients that have it, so that
light ones can share processes and train together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.clients.memory_cap import CUDA_BYTES
from cluster.hardware.inventory import Inventory
from cluster.profiling.steps import Step, Subject, measure_steps
from fl.errors import UserError, unknown
from fl.federation import Request, RunSpec
from fl.methods.method import Assignment
from fl.resources import ResourcesConfig, ShareConfig
from fl.training.sizes import SIZES
from fl.training.slots import SLOTS

MARGIN = 1.25
"""Factor between the measured peak and what a client gets."""
SLACK_BYTES = 128 * 2**20
"""Bytes added to that: allocators take memory in pieces, and a task may import more modules."""
COHORT = max(SIZES)
"""Light clients train together, so their share is for this many clients, or as many as fit."""
BYTES_PER_PIXEL = 5
"""A shard's images as bytes and as float32."""


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
    return 2 * sum(sorted(num_samples, reverse=True)[:SLOTS])


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
