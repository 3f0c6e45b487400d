"""A launch's own Ray cluster, which starts while the run is still being prepared."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from cluster.hardware.inventory import Inventory
from cluster.hardware.private_ray import announced, import_ray, private_ray
from cluster.hardware.ray_internals import on_loopback
from cluster.hardware.worker_template import can_fork, worker_template
from cluster.run.options import Launch
from fl.errors import UserError

START_S = 60.0
"""Seconds in which the cluster has to start; it takes 2 to 10 where nothing else is at work."""


class EarlyRay:
    """Starts the cluster beside what else the launch does, and ends it with the context.

    Args:
        launch: the run; one that needs no cluster of its own gets none.
        fork: whether this process is the command's own, from which workers may be forked.
    """

    def __init__(self, launch: Launch, *, fork: bool) -> None:
        self._own = launch.runtime == "ray" and not (
            launch.ray_address or launch.dry_run or launch.slurm.submit
        )
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
            with private_ray(
                cpus=inventory.cpus,
                gpus=len(inventory.gpus),
                memory_bytes=inventory.memory_bytes,
                template=self._template,
            ):
                self._begun.set()
                self._over.wait()
        except BaseException as error:
            self._error = error  # for who waits
        finally:
            self._begun.set()

    @contextmanager
    def ready(self, published: Path) -> Iterator[bool]:
        """Waits for the cluster; gives whether there is one. Raises what made its start fail.

        ``published`` holds ``HOST:PORT`` of the cluster while the context lasts.
        """
        if self._thread is None:
            yield False
            return
        if not self._begun.wait(START_S):
            self._late = True
            raise UserError(
                f"Ray has not started within {START_S:g} s; try again when this machine is less "
                "busy, or use --runtime inprocess"
            )
        if self._error:
            raise self._error
        with announced(published):
            yield True

    def end(self) -> None:
        """Has the cluster begin to end, beside what else the launch does.

        By now nothing may refer to what lies in the cluster: letting go of it in one thread, while
        Ray ends in another, can end the whole process.
        """
        self._over.set()
