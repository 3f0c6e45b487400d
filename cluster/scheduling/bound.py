"""How fast a set of jobs could be at best, to measure a placement by."""

from collections.abc import Iterable, Sequence
from math import fsum

from cluster.scheduling.capacity import Bundle, Need, capacity, need_of
from fl.federation import Request


def lower_bound(bundles: Sequence[Bundle], jobs: Iterable[tuple[Request, float]]) -> float:
    """Seconds that no placement of the jobs, each a request and its seconds, can undercut.

    The longer of two times: that of the longest job alone, and that of all that is requested of
    one kind of capacity, spread evenly over all there is of it. It is seldom attainable, since
    shares and cores do not pack evenly.
    """
    with_gpus = any(bundle.gpus for bundle in bundles)
    needs = [(need_of(request, with_gpus=with_gpus), seconds) for request, seconds in jobs]
    longest = max((seconds for _, seconds in needs), default=0.0)
    return max(longest, *spread_evenly(bundles, needs))


def spread_evenly(
    bundles: Sequence[Bundle], jobs: Sequence[tuple[Need, float]]
) -> tuple[float, float, float]:
    """Seconds that cores, GPUs and memory need for the jobs if each could be divided at will.

    The order of the jobs makes no difference, to the last bit.
    """
    there = capacity(bundles)
    asked = (fsum(need[kind] * seconds for need, seconds in jobs) for kind in range(len(there)))
    cpus, gpus, memory = (a / t if t else 0.0 for a, t in zip(asked, there, strict=True))
    return cpus, gpus, memory
