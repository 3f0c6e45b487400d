"""How fast a set of jobs could be at best, to measure a placement by."""

from collections.abc import Iterable, Sequence

from cluster.capacity import Room
from fl.federation import Request


def lower_bound(rooms: Sequence[Room], jobs: Iterable[tuple[Request, float]]) -> float:
    """Seconds that no placement of the jobs, each a request and its seconds, can undercut.

    The longest job alone, or everything that is asked for of a kind spread evenly over all there
    is of it, whichever takes longer. It is seldom attainable: shares and cores do not pack evenly.
    """
    jobs = list(jobs)
    cores = sum(request.cpus * seconds for request, seconds in jobs)
    shares = sum(request.gpus * seconds for request, seconds in jobs)
    memory = sum(request.memory_bytes * seconds for request, seconds in jobs)
    asked_and_there = (
        (cores, sum(room.cpus for room in rooms)),
        (shares, sum(room.gpus for room in rooms)),
        (memory, sum(room.memory_bytes for room in rooms)),
    )
    longest = max((seconds for _, seconds in jobs), default=0.0)
    return max([longest, *(asked / there for asked, there in asked_and_there if there)])
