"""Everything that can be wrong is found here, before anything starts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cluster.inventory import Inventory, take_inventory
from cluster.options import LaunchOptions
from fl.data.datasets import Dataset, load
from fl.data.partition import Partition, make_partition
from fl.federation import Client, Problem
from fl.methods.registry import Method, get_method
from fl.seeding import numpy_generator


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that is ready to start."""

    method: Method
    problem: Problem
    dataset: Dataset
    partition: Partition
    members: tuple[Client, ...]
    inventory: Inventory


def prepare(launch: LaunchOptions[Any], *, drawn: int | None = None) -> Prepared:
    """Reads the data, cuts it among the clients and deals them their parts.

    Args:
        launch: the command's options.
        drawn: cut not the training samples themselves but so many drawn from them with
            replacement, for a study of more clients than there is data for.

    Raises:
        UserError: one line, for whatever the configuration, the data or this machine rule out.
    """
    run = launch.run
    method = get_method(run.method)
    parts = method.cast(run.options, run.num_clients, run.problem)
    inventory = take_inventory()
    requests = {}
    for role in {p.role for p in parts}:
        request = getattr(run.resources, role)
        inventory.check(role, request)
        requests[role] = inventory.scaled(request)
    dataset = load(
        run.dataset, launch.data_root, max_train=run.data.max_train, max_test=run.data.max_test
    )
    pool = np.arange(len(dataset.train.labels))
    if drawn is not None:
        pool = numpy_generator(run.seed, "drawn").choice(pool, drawn)
    partition = make_partition(
        dataset.train.labels[pool],
        run.num_clients,
        dataset.num_classes,
        run.partition,
        alpha=run.alpha,
        seed=run.seed,
    )
    partition = replace(
        partition,
        train=tuple(pool[own] for own in partition.train),
        test=tuple(pool[own] for own in partition.test),
    )
    members = tuple(
        Client(
            id=k,
            role=part.role,
            training=part.training,
            num_samples=len(partition.train[k]),
            request=requests[part.role],
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
    )
