"""Opens what a run computes on: a Ray cluster or this process, executor of the clients, server.

Ray is imported only where it is used, since the import takes a second and reads the environment.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cluster.hardware.inventory import Inventory
from cluster.hardware.private_ray import joined_ray, private_ray
from cluster.run.early_ray import EarlyRay
from cluster.run.options import Launch
from cluster.run.prepare import Prepared
from cluster.server.rank_placement import place_ranks, world_size
from fl.arithmetic import arithmetic
from fl.data.shard import Shard
from fl.events import Events
from fl.executor import InProcess
from fl.federation import Executor, RunSpec
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.server import Server, SingleServer
from fl.training.sizes import CohortSizes

ADDRESS = "ray-address"
"""The file of a run that holds ``HOST:PORT`` of its cluster while that is there."""

if TYPE_CHECKING:
    from cluster.hardware.bundles import Bundles


@contextmanager
def open_cluster(
    launch: Launch, inventory: Inventory, run_dir: Path, early: EarlyRay | None = None
) -> "Iterator[Bundles | None]":
    """The bundles of a Ray cluster; None without Ray.

    The cluster lives as long as the context, or, if it was started before, as long as that one's.
    """
    if launch.runtime == "inprocess":
        yield None
        return
    with ray_cluster(launch, inventory, run_dir, early):
        from cluster.hardware.bundles import open_bundles

        with open_bundles() as bundles:
            yield bundles


@contextmanager
def open_executor(
    launch: Launch, prepared: Prepared, bundles: "Bundles | None", server: Server
) -> Iterator[Executor]:
    """The executor that runs the clients; clients and the server's ranks never run at once."""
    sizes = CohortSizes(launch.output_dir / ".store" / "cohorts")
    if bundles is None:
        timeout, rates = launch.client_timeout, prepared.rates
        yield InProcess(prepared.dataset.train, sizes, timeout=timeout, rates=rates)
        return
    from cluster.clients.executor import RayExecutor

    executor = RayExecutor(
        prepared.dataset.train,
        bundles,
        max_actors=launch.max_actors,
        rates=prepared.rates,
        timeout=launch.client_timeout,
        before=server.release,
        sizes=sizes,
        reuse_processes=launch.run.rounds > 1,
    )
    with closing(executor):
        yield executor


@contextmanager
def open_server(
    launch: Launch,
    run_spec: RunSpec,
    test: Shard,
    events: Events,
    bundles: "Bundles | None",
    checkpoints: Checkpoints,
) -> Iterator[Server]:
    """The server over as many ranks as the launch asks for, or as there are GPUs."""
    gpus = sum(bundle.gpus for bundle in bundles.all) if bundles else 0
    ranks = world_size(launch.fusion_ranks, gpus)
    # A single rank runs in this process, unless the only GPU is on another node.
    if bundles is None or (ranks == 1 and (not gpus or torch.cuda.is_available())):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        alone = SingleServer(run_spec, test, events, device, checkpoints)
        alone.inference = launch.run.inference
        with arithmetic(device, tf32=run_spec.tf32):
            yield alone
        return
    from cluster.hardware.bundles import gpu_names
    from cluster.server.fusion_server import FusionServer

    where, timeout_s = place_ranks(bundles.all, ranks, gpu_names(bundles)), launch.fusion_timeout
    server = FusionServer(
        run_spec, test, events, bundles, where, timeout_s=timeout_s, checkpoints=checkpoints
    )
    server.inference = launch.run.inference
    with closing(server):
        yield server


def has_ray() -> bool:
    """Whether this process is part of a Ray cluster already."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextmanager
def ray_cluster(
    launch: Launch, inventory: Inventory, run_dir: Path, early: EarlyRay | None = None
) -> Iterator[None]:
    """The launch's cluster: the one that was started before, or another."""
    with ExitStack() as stack:
        if not (early and stack.enter_context(early.ready(run_dir / ADDRESS))):
            stack.enter_context(_another(launch, inventory, run_dir))
        yield


def _another(launch: Launch, inventory: Inventory, run_dir: Path) -> AbstractContextManager[None]:
    """The one this process is in, one to join, or one of its own."""
    if has_ray():  # a sweep's, which outlives its trials
        return nullcontext()
    if launch.ray_address:
        return joined_ray(launch.ray_address)
    return private_ray(
        cpus=inventory.cpus,
        gpus=len(inventory.gpus),
        memory_bytes=inventory.memory_bytes,
        published=run_dir / ADDRESS,
    )
