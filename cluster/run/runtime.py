"""Opens what a run computes on: a Ray cluster or this process, executor of the clients, server.

Ray is imported only where it is used, since the import takes a second and reads the environment.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from cluster.hardware.inventory import Inventory
from cluster.hardware.private_ray import announced, import_ray, joined_ray, private_ray
from cluster.hardware.ray_internals import has_ray, on_loopback
from cluster.hardware.worker_template import can_fork, worker_template
from cluster.run.options import Machine
from cluster.run.prepare import Prepared
from cluster.scheduling.capacity import place_ranks, world_size
from fl.data.shard import Shard
from fl.errors import UserError
from fl.events import Events
from fl.executor import InProcess
from fl.federation import Executor, RunSpec
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import Inference
from fl.fusion.server import Server, SingleServer
from fl.process import arithmetic
from fl.training.sizes import CohortSizes

ADDRESS = "ray-address"
"""The file of a run that holds ``HOST:PORT`` of its cluster while that is there."""
START_S = 60.0
"""Seconds in which the cluster has to start; it takes 2 to 10 where nothing else is at work."""

if TYPE_CHECKING:
    from cluster.hardware.bundles import Bundles


class EarlyRay:
    """Starts the cluster beside what else a command does, and ends it with the context.

    Args:
        wanted: whether the command needs a cluster of its own; else it gets none.
        fork: whether this process is the command's own, from which workers may be forked.
    """

    def __init__(self, *, wanted: bool, fork: bool) -> None:
        self._own = wanted
        self._fork = fork
        self._template: Path | None = None
        self._held = ExitStack()
        self._thread: threading.Thread | None = None
        self._begun, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._late = False

    def __enter__(self) -> Self:
        if self._own and self._fork and can_fork():
            self._template = self._held.enter_context(worker_template())
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread:
            self.end()
            self._thread.join(0 if self._late else None)  # it is a daemon
        self._held.close()

    def begin(self, inventory: Inventory) -> None:
        """Begins to start the cluster, over what the run may use."""
        if self._own and self._thread is None:
            # Here, as another thread could meet a half imported module, or a half changed
            # environment.
            import_ray()
            self._held.enter_context(on_loopback())
            self._thread = threading.Thread(target=self._hold, args=(inventory,), daemon=True)
            self._thread.start()

    def _hold(self, inventory: Inventory) -> None:
        """Has the cluster from its start to its end: its processes die with the thread that
        started them."""
        try:
            with private_ray(inventory.bundle, template=self._template):
                self._begun.set()
                self._over.wait()
        except BaseException as error:
            self._error = error  # for who waits
        finally:
            self._begun.set()

    @property
    def begun(self) -> bool:
        """Whether there is a cluster to wait for."""
        return self._thread is not None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Waits for the cluster that was begun. Raises what made its start fail."""
        if not self._begun.wait(START_S):
            self._late = True
            raise UserError(
                f"Ray has not started within {START_S:g} s; try again when this machine is less "
                "busy, or use --runtime inprocess"
            )
        if self._error:
            raise self._error
        yield

    def end(self) -> None:
        """Has the cluster begin to end, beside what else the command does.

        By now nothing may refer to what lies in the cluster: letting go of it in one thread, while
        Ray ends in another, can end the whole process.
        """
        self._over.set()


@contextmanager
def open_cluster(
    machine: Machine, inventory: Inventory, run_dir: Path, early: EarlyRay | None = None
) -> "Iterator[Bundles | None]":
    """The bundles of a Ray cluster; None without Ray.

    The cluster lives as long as the context, or, if it was started before, as long as that one's.
    """
    if machine.runtime == "inprocess":
        yield None
        return
    with ray_cluster(machine, inventory, run_dir, early):
        from cluster.hardware.bundles import open_bundles

        with open_bundles() as bundles:
            yield bundles


@contextmanager
def open_executor(
    machine: Machine,
    prepared: Prepared,
    bundles: "Bundles | None",
    server: Server,
    store: Path,
) -> Iterator[Executor]:
    """The executor that runs the clients; clients and the server's ranks never run at once."""
    sizes = CohortSizes(store / "cohorts")
    if bundles is None:
        timeout, rates = machine.client_timeout, prepared.requests.rates
        yield InProcess(prepared.dataset.train, sizes, timeout=timeout, rates=rates)
        return
    from cluster.clients.executor import RayExecutor

    executor = RayExecutor(
        prepared.dataset.train,
        bundles,
        max_actors=machine.max_actors,
        rates=prepared.requests.rates,
        timeout=machine.client_timeout,
        before=server.release,
        sizes=sizes,
        reuse_processes=prepared.run.rounds > 1,
    )
    with closing(executor):
        yield executor


@contextmanager
def open_server(
    machine: Machine,
    run_spec: RunSpec,
    test: Shard,
    events: Events,
    bundles: "Bundles | None",
    checkpoints: Checkpoints,
    *,
    inference: Inference,
) -> Iterator[Server]:
    """The server over as many ranks as are asked for, or as there are GPUs."""
    gpus = sum(bundle.gpus for bundle in bundles.all) if bundles else 0
    ranks = world_size(machine.fusion_ranks, gpus)
    # A single rank runs in this process, unless the only GPU is on another node.
    if bundles is None or (ranks == 1 and (not gpus or torch.cuda.is_available())):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        alone = SingleServer(run_spec, test, events, device, checkpoints)
        alone.inference = inference
        with arithmetic(device, tf32=run_spec.tf32):
            yield alone
        return
    from cluster.hardware.bundles import gpu_names
    from cluster.server.fusion_server import FusionServer

    where, timeout_s = place_ranks(bundles.all, ranks, gpu_names(bundles)), machine.fusion_timeout
    server = FusionServer(
        run_spec, test, events, bundles, where, timeout_s=timeout_s, checkpoints=checkpoints
    )
    server.inference = inference
    with closing(server):
        yield server


@contextmanager
def ray_cluster(
    machine: Machine, inventory: Inventory, run_dir: Path, early: EarlyRay | None = None
) -> Iterator[None]:
    """The run's cluster: the one that was started before, the one this process is in, one to join,
    or one of its own."""
    begun = early is not None and early.begun
    if has_ray() and not begun:  # a sweep's, which outlives its trials
        yield
    elif machine.ray_address:
        with joined_ray(machine.ray_address):
            yield
    else:
        own = early.ready() if early and begun else private_ray(inventory.bundle)
        with own, announced(run_dir / ADDRESS):
            yield
