"""Makes all checks, one after the other: first those of this process, then those on Ray.

Without Ray the filter and the fit are checked in this process.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch

from cluster.checks import client_checks, rank_checks, store_checks
from cluster.checks.check import Check, CheckFailed, CheckSkipped, Result
from cluster.checks.client_checks import ClientPool
from cluster.checks.federation import images
from cluster.checks.found import Found
from cluster.checks.ray_check import JOIN, START, CheckedRay
from cluster.hardware.inventory import Inventory
from cluster.run.run_dir import NOT_INSTALLED
from fl.executor import InProcess


def run_checks(found: Found, output_dir: Path, ray_address: str | None) -> Iterator[Result]:
    """Yields each check's result as soon as it is there.

    Args:
        found: what there is on this machine.
        output_dir: the folder of all runs, which need not exist.
        ray_address: HOST:PORT of a Ray cluster to join; None to start one, and to end it.
    """
    yield GPUS.perform(found)
    for check in store_checks.CHECKS:
        yield check.perform(output_dir)
    if found.versions["ray"] == NOT_INSTALLED and not ray_address:
        yield START.skipped("not installed: runs work with --runtime inprocess")
        yield from _in_process(found.machine)
        return
    with closing(CheckedRay(found.machine, ray_address)) as cluster:
        started = (JOIN if ray_address else START).perform(cluster)
        yield started
        yield from _on_ray(cluster) if started.status == "passed" else _in_process(found.machine)


def _on_ray(cluster: CheckedRay) -> Iterator[Result]:
    from cluster.clients.executor import RayExecutor

    bundles = cluster.bundles
    with closing(RayExecutor(images(), bundles, attempts=1, reuse_processes=True)) as executor:
        for client_check in client_checks.CHECKS:
            result = client_check.perform(ClientPool(executor=executor, bundles=bundles.all))
            if result.status == "failed":
                executor.close()  # or a client that hangs would be in the way of the next
            yield result
    for rank_check in rank_checks.CHECKS:
        yield rank_check.perform(bundles)


def _in_process(machine: Inventory) -> Iterator[Result]:
    """Those that need no other process; the others are skipped."""
    pool = ClientPool(executor=InProcess(images()), bundles=[machine.bundle])
    for check in client_checks.CHECKS:
        alone = check is client_checks.FILTER
        yield check.perform(pool) if alone else check.skipped("no Ray")
    yield rank_checks.FIT_HERE.perform(torch.device("cuda" if machine.gpus else "cpu"))
    yield from (check.skipped("no Ray") for check in rank_checks.CHECKS[1:])


def driver_answers(found: Found) -> str:
    """GPUs could be looked for, and some were found."""
    if found.driver_error:
        raise CheckFailed(found.driver_error)
    if not found.machine.gpus:
        raise CheckSkipped("no GPU")
    return f"the driver offers {len(found.machine.gpus)}"


GPUS = Check(
    name="GPUs",
    run=driver_answers,
    advice="have NVIDIA's driver repaired, until nvidia-smi answers; or set CUDA_VISIBLE_DEVICES= "
    "to do without GPUs",
    timeout_s=5.0,
)
