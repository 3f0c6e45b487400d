"""The check that starts a Ray cluster, or joins one, on which further checks are made."""

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster.checks.check import Check
from cluster.hardware.inventory import Inventory
from cluster.hardware.private_ray import joined_ray, private_ray
from fl.report.words import size

if TYPE_CHECKING:
    from cluster.hardware.bundles import Bundles

END_S = 15.0
"""Seconds that the cluster's end may take."""


class CheckedRay:
    """A Ray cluster of our own, or one to join, from :meth:`start` to :meth:`close`.

    Args:
        machine: what a cluster of our own hands out.
        address: HOST:PORT of a cluster to join; None for one of our own.
    """

    bundles: "Bundles"
    """All that the cluster hands out, once it has been started."""

    def __init__(self, machine: Inventory, address: str | None) -> None:
        self._machine, self._address = machine, address
        # Ray's processes end with the thread that started them: this one is there until the end.
        self._thread, self._inside = ThreadPoolExecutor(1), ExitStack()

    def start(self) -> str:
        """Starts the cluster, or joins it, and tells what it hands out."""
        self.bundles = self._thread.submit(self._enter).result()
        every = self.bundles.all
        cores = _counted(sum(bundle.cpus for bundle in every), "core")
        gpus = _counted(sum(bundle.gpus for bundle in every), "GPU")
        memory = size(sum(bundle.memory_bytes for bundle in every))
        nodes = f"joined on {_counted(len(every), 'node')}" if self._address else "started here"
        return f"{nodes}: {cores}, {gpus} and {memory} for clients"

    def close(self) -> None:
        """Ends all processes of the checks, and a cluster of our own."""
        wait([self._thread.submit(self._inside.close)], timeout=END_S)

    def _enter(self) -> "Bundles":
        machine = self._machine
        cluster = (
            joined_ray(self._address)
            if self._address
            else private_ray(
                cpus=machine.cpus, gpus=len(machine.gpus), memory_bytes=machine.memory_bytes
            )
        )
        self._inside.enter_context(cluster)
        from cluster.hardware.bundles import open_bundles

        return self._inside.enter_context(open_bundles())


def _counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


START = Check(
    name="Ray",
    run=CheckedRay.start,
    advice="free space in /tmp and /dev/shm, or processes (ulimit -u), may be too few for Ray; "
    "--runtime inprocess runs without it",
    timeout_s=90.0,
)
JOIN = replace(
    START,
    advice="--ray-address must name a cluster that this node is part of, and that nothing else "
    "is using now",
)
