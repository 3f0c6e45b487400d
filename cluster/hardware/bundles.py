"""The bundles of a run: one placement group over all nodes, a bundle of it per node."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.hardware.ray_internals import gpus_of_group
from cluster.scheduling.capacity import Bundle
from fl.errors import UserError

REFUSED_AFTER_S = 60.0
"""A cluster that cannot give what it announced within this time is reported as full."""

RETURNED_WITHIN_S = 10.0
"""Seconds that Ray may take to take back shares of GPUs from processes that were ended."""


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """Where clients may run. The bundle named ``i`` is bundle i of the placement group."""

    group: Any
    all: tuple[Bundle, ...]
    nodes: dict[str, str]
    """Ray's node id of each bundle."""

    def strategy(self, bundle: str) -> PlacementGroupSchedulingStrategy:
        """Schedules an actor into that bundle and nowhere else."""
        return PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=int(bundle)
        )

    def lost(self) -> set[str]:
        """Bundles on nodes that are gone."""
        alive = {n["NodeID"] for n in ray.nodes() if n["Alive"]}
        return {bundle for bundle, node in self.nodes.items() if node not in alive}


def gpu_names(bundles: Bundles) -> dict[str, list[str]]:
    """Names of each bundle's GPUs on its node; asked before any client has a share of them."""
    own = ray.remote(lambda: ray.get_runtime_context().get_accelerator_ids()["GPU"])
    asked: dict[str, Any] = {}
    for bundle in bundles.all:
        if bundle.gpus:
            where = bundles.strategy(bundle.name)
            options = own.options(num_cpus=0, num_gpus=bundle.gpus, scheduling_strategy=where)
            asked[bundle.name] = options.remote()
    return dict(zip(asked, ray.get(list(asked.values())), strict=True))


def await_gpus(bundles: Bundles) -> None:
    """Waits until no process holds a share of the bundles' GPUs, for ``RETURNED_WITHIN_S`` at most.

    Ray takes a share back when its process has ended, which frees the process's memory too. If
    some are still held after that time, a warning says how many.
    """
    name = gpus_of_group(bundles.group)
    deadline = time.monotonic() + RETURNED_WITHIN_S
    while (
        held := ray.cluster_resources().get(name, 0) - ray.available_resources().get(name, 0)
    ) > 0:
        if time.monotonic() > deadline:
            warnings.warn(
                f"{held:g} GPUs are still held {RETURNED_WITHIN_S:g} s after the last client's "
                "process was ended; the server starts beside what holds them",
                stacklevel=2,
            )
            return
        time.sleep(0.05)


@contextmanager
def open_bundles() -> Iterator[Bundles]:
    """Reserves every node of the cluster; inside a sweep's trial, the trial's own reservation.

    A trial that reserved nodes itself would wait for the other trials, and they for it.

    Raises:
        UserError: others hold the cluster's resources.
    """
    own = get_current_placement_group()
    if own is not None:
        yield _bundles(own)
        return
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    # Other resources only label a node.
    bundles = [{k: n[k] for k in ("CPU", "GPU", "memory") if n.get(k, 0) > 0} for n in nodes]
    group = placement_group([b for b in bundles if "CPU" in b], strategy="SPREAD")
    try:
        if not group.wait(REFUSED_AFTER_S):
            raise UserError(
                f"asked the Ray cluster for {bundles} and got nothing in {REFUSED_AFTER_S:.0f} s; "
                f"available now: {ray.available_resources()}"
            )
        yield _bundles(group)
    finally:
        remove_placement_group(group)


def _bundles(group: Any) -> Bundles:
    bundles = tuple(
        Bundle(
            name=str(index),
            cpus=bundle.get("CPU", 0),
            gpus=int(bundle.get("GPU", 0)),
            memory_bytes=int(bundle.get("memory", 0)),
        )
        for index, bundle in enumerate(group.bundle_specs)
    )
    by_index = placement_group_table(group)["bundles_to_node_id"]
    nodes = {str(index): node for index, node in by_index.items()}
    return Bundles(group=group, all=bundles, nodes=nodes)
