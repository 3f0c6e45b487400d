"""Ranks as threads of this process: they sum as ranks elsewhere do, and start at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import TypeVar

from torch import Tensor

from fl.fusion.group import Group

Result = TypeVar("Result")


class ThreadGroup(Group):
    """One of several ranks, each in a thread."""

    def __init__(self, rank: int, barrier: Barrier, brought: dict[int, Tensor]) -> None:
        self.rank, self.size = rank, barrier.parties
        self._barrier, self._brought = barrier, brought

    def sum(self, tensor: Tensor) -> None:
        """See :class:`fl.fusion.group.Group`; all ranks get the same bits."""
        self._brought[self.rank] = tensor.clone()
        self._barrier.wait()
        total = sum(self._brought[rank] for rank in range(self.size))
        self._barrier.wait()
        tensor.copy_(total)


def on_ranks(size: int, work: Callable[[Group], Result]) -> list[Result]:
    """What the work comes to on each rank; the first error of a rank's own is raised."""
    barrier, brought = Barrier(size, timeout=60), dict[int, Tensor]()

    def run(rank: int) -> Result:
        try:
            return work(ThreadGroup(rank, barrier, brought))
        except BaseException:
            barrier.abort()  # the others wait no longer
            raise

    with ThreadPoolExecutor(size) as pool:
        ended = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for one in ended if (error := one.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return [one.result() for one in ended]
