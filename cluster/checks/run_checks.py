"""Makes all checks, one after the other: first those of this process, then those on Ray."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cluster.checks import client_checks, rank_checks, store_checks
from cluster.checks.check import Check, CheckFailed, CheckSkipped, Result
from cluster.checks.client_checks import ClientPool
from cluster.checks.federation import images
from cluster.checks.found import Found
from cluster.checks.ray_check import JOIN, START, CheckedRay


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
    with closing(CheckedRay(found.machine, ray_address)) as cluster:
        started = (JOIN if ray_address else START).perform(cluster)
        yield started
        if started.status == "passed":
            yield from _on_ray(cluster)
        else:
            every = (*client_checks.CHECKS, *rank_checks.CHECKS)
            yield from (check.skipped("no Ray") for check in every)


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
