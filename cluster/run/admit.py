"""Admits a run: refuses what configuration and machine rule out, before any data is read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.hardware.inventory import Inventory, take_inventory
from cluster.hardware.joined_ray import joined_inventory
from cluster.hardware.private_ray import refuse_other_systems
from cluster.hardware.shadows import refuse_shadows
from cluster.profiling.requests import Requests, stated
from cluster.run.model_memory import refuse_large
from cluster.run.options import Launch
from cluster.server.rank_placement import world_size
from fl.config import RunConfig
from fl.federation import RunSpec
from fl.methods.method import Assignment
from fl.methods.registry import Method, get_method
from fl.training.private import private


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A run that nothing but its data can rule out."""

    method: Method
    run_spec: RunSpec
    assignments: Sequence[Assignment]
    """By client id."""
    inventory: Inventory
    requests: Requests
    """As far as they are known before a step is measured."""
    fusion_ranks: int | None
    """Ranks of the server: as asked for, or the method's default; None for one per GPU."""


def admit(launch: Launch, inventory: Inventory | None = None) -> Admitted:
    """Checks the run against itself and against what it may use.

    Args:
        launch: the run.
        inventory: what it may use. Default: what there is on this machine or cluster.

    Raises:
        UserError: one line, for whatever the configuration or this machine rule out.
    """
    if launch.runtime == "ray":
        refuse_other_systems()
        refuse_shadows()
    run = launch.run
    method = get_method(run.method)
    run_spec = run.run_spec  # reads the disk where the data is a folder
    assignments = _assignments(run, method, run_spec)
    for training in {assignment.training for assignment in assignments}:
        refuse_large(training, run_spec)
    inventory = inventory or _inventory(launch)
    ranks = launch.fusion_ranks or method.default_ranks
    if not (launch.slurm.submit or launch.ray_address):  # the inventory covers all GPUs of the run
        world_size(ranks, len(inventory.gpus))
    return Admitted(
        method=method,
        run_spec=run_spec,
        assignments=assignments,
        inventory=inventory,
        requests=stated(assignments, run.resources, inventory),
        fusion_ranks=ranks,
    )


def _assignments(run: RunConfig[Any], method: Method, run_spec: RunSpec) -> list[Assignment]:
    """The method's, with differential privacy if that is asked for."""
    plain = method.assign(run.options, run.num_clients, run_spec)
    if run.dp.epsilon is None:
        return plain
    changed = {a: private(a.training, run.dp, run.rounds, run_spec) for a in set(plain)}
    return [replace(a, training=changed[a]) for a in plain]


def _inventory(launch: Launch) -> Inventory:
    if launch.slurm.submit:
        return launch.slurm.shape
    if launch.ray_address:
        return joined_inventory(launch.ray_address)
    return take_inventory()
