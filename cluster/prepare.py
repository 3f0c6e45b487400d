"""Everything that can be wrong is found here, before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.inventory import Inventory, take_inventory
from cluster.joined import joined_inventory
from cluster.options import LaunchOptions
from cluster.requests import measured, stated
from cluster.world import world_size
from fl.data.datasets import Dataset, load
from fl.data.partition import Partition, make_partition
from fl.data.validation import hold_out
from fl.federation import Client, Problem
from fl.methods.registry import Method, get_method


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that is ready to start."""

    method: Method
    problem: Problem
    dataset: Dataset
    partition: Partition
    members: tuple[Client, ...]
    inventory: Inventory
    rates: Mapping[str, float]
    """Seconds per sample by model, where one step was measured."""


def prepare(launch: LaunchOptions[Any], inventory: Inventory | None = None) -> Prepared:
    """Reads the data, cuts it among the clients and deals them their parts.

    Args:
        launch: the run.
        inventory: what it may use. Default: what there is on this machine or cluster.

    Raises:
        UserError: one line, for whatever the configuration, the data or this machine rule out.
    """
    run = launch.run
    method = get_method(run.method)
    parts = method.cast(run.options, run.num_clients, run.problem)
    inventory = inventory or _inventory(launch)
    world_size(launch.fusion_ranks, len(inventory.gpus))
    requests = stated(parts, run.resources, inventory)
    dataset = load(
        run.dataset, launch.data_root, max_train=run.data.max_train, max_test=run.data.max_test
    )
    if run.data.validation:
        dataset = hold_out(dataset, run.data.validation, run.seed)
    partition = make_partition(
        dataset.train.labels,
        run.num_clients,
        dataset.num_classes,
        run.partition,
        alpha=run.alpha,
        seed=run.seed,
    )
    if launch.runtime == "ray" and not launch.slurm.submit:  # the job will measure on its own node
        num_samples = [len(indices) for indices in partition.train]
        requests = measured(parts, num_samples, run.problem, run.resources, inventory)
    members = tuple(
        Client(
            id=k,
            role=part.role,
            training=part.training,
            num_samples=len(partition.train[k]),
            request=requests.by_part[part],
        )
        for k, part in enumerate(parts)
    )
    return Prepared(
        method=method,
        problem=run.problem,
        dataset=dataset,
        partition=partition,
        members=members,
        inventory=inventory,
        rates=requests.rates,
    )


def _inventory(launch: LaunchOptions[Any]) -> Inventory:
    if launch.slurm.submit:
        return launch.slurm.shape
    if launch.ray_address:
        return joined_inventory(launch.ray_address)
    return take_inventory()
