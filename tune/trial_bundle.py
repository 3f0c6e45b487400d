"""How much of the cluster a trial gets: a bundle of its own, large enough for every client."""

import math
from collections.abc import Iterable, Mapping, Sequence

from fl.federation import Request

DRIVER_BYTES = 4 * 2**30
"""Memory that a trial takes beside its clients, roughly: for its own process and the server."""

Resources = Mapping[str, float]


def concurrency(nodes: Sequence[Resources], requests: Iterable[Request]) -> int:
    """Trials at once by default: one per GPU, else as many as cores and memory allow."""
    requests = tuple(requests)
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if gpus:
        return gpus
    return sum(_fits(node, _least(requests)) for node in nodes)


def trial_bundle(
    nodes: Sequence[Resources], requests: Iterable[Request], trials: int
) -> dict[str, float]:
    """The bundle of each of so many trials: an even part of a node, whole cores and whole GPUs.

    It is never less than what the largest client asks for: then fewer trials run at once. Nodes
    may differ, and a trial must fit on each.
    """
    beside = math.ceil(trials / len(nodes))
    least = _least(requests)
    share = {
        kind: min(node.get(kind, 0) for node in nodes) // beside
        for kind in ("CPU", "GPU", "memory")
    }
    there = {kind: min(node.get(kind, 0) for node in nodes) for kind in share}
    whole = {kind: max(share[kind], min(least[kind], there[kind])) for kind in share}
    return {kind: amount for kind, amount in whole.items() if amount}


def _fits(node: Resources, least: Resources) -> int:
    fits = node["CPU"] // least["CPU"]
    if "memory" in node:
        fits = min(fits, node["memory"] // (least["memory"] + DRIVER_BYTES))
    return max(1, int(fits))


def _least(requests: Iterable[Request]) -> dict[str, float]:
    """The most that any client asks for of each kind, in whole cores and GPUs."""
    requests = tuple(requests)
    return {
        "CPU": max(1, *(math.ceil(r.cpus) for r in requests)),
        "GPU": 1,
        "memory": max(0, *(r.memory_bytes for r in requests)),
    }
