"""The server over one rank in this process, and over several with one thread or one GPU each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from cluster.hardware.inventory import take_inventory
from cluster.scheduling.capacity import place_ranks
from fl.data.shard import Shard
from fl.events import Events
from fl.federation import RunSpec
from fl.fusion.server import Server, SingleServer
from fl.process import arithmetic


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Sets so many threads for torch and for the libraries that scikit-learn uses."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def servers(
    run_spec: RunSpec, numbers: Sequence[int], device: torch.device, events: Events
) -> Iterator[dict[str, Server]]:
    """A server for each number of ranks; more than one rank on a private Ray cluster.

    Inside, this process's GPU computes as in a run; several ranks may share a GPU.
    """
    labels = torch.zeros(64, dtype=torch.int64)
    test = Shard(torch.rand(64, *run_spec.image_shape), labels, run_spec.num_classes)
    made: dict[str, Server] = {}
    if 1 in numbers:
        made["1 rank"] = SingleServer(run_spec, test, events, device)
    if max(numbers) == 1:
        with arithmetic(device, tf32=False):
            yield made
        return
    from cluster.hardware.bundles import gpu_names, open_bundles
    from cluster.hardware.private_ray import private_ray
    from cluster.server.fusion_server import FusionServer

    whole = replace(take_inventory().bundle, cpus=max(numbers))
    with arithmetic(device, tf32=False), private_ray(whole), open_bundles() as bundles:
        names, started = gpu_names(bundles), []
        for ranks in numbers:
            if ranks > 1:
                where = [replace(p, threads=1) for p in place_ranks(bundles.all, ranks, names)]
                server = FusionServer(run_spec, test, events, bundles, where, timeout_s=600)
                started.append(server)
                shared = f" on {whole.gpus} GPU" if 0 < whole.gpus < ranks else ""
                made[f"{ranks} ranks{shared}"] = server
        yield made
        for server in started:
            server.close()
