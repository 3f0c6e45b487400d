"""Ranks as threads of this process: they sum as ranks elsewhere do, and start at once.

Each may have a GPU of its own; see :mod:`tests.fl.devices`.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import torch
from torch import Tensor

from fl.data.shard import Shard
from fl.events import Events
from fl.federation import RunSpec
from fl.fusion.fit import FitSpec
from fl.fusion.group import Group
from fl.fusion.rank import Rank, Report
from fl.fusion.server import Arguments, Block, Server, Value
from tests.fl.devices import Where
from tests.fl.toy import CPU

Result = TypeVar("Result")
HERE = Where(CPU)


class ThreadGroup(Group):
    """One of several ranks, each in a thread."""

    def __init__(
        self, rank: int, barrier: Barrier, brought: dict[int, Tensor], device: torch.device
    ) -> None:
        self.rank, self.size, self.device = rank, barrier.parties, device
        self._barrier, self._brought = barrier, brought

    def sum(self, tensor: Tensor) -> None:
        """See :class:`fl.fusion.group.Group`; all ranks get the same bits."""
        assert tensor.device == self.device, "NCCL sums what is on the rank's own GPU"
        self._brought[self.rank] = tensor.detach().to("cpu", copy=True)
        self._barrier.wait()
        total = sum(self._brought[rank] for rank in range(self.size))
        self._barrier.wait()
        tensor.copy_(total)

    def leave(self) -> None:
        """Once its work is done: a rank that sums once more lacks this one's part."""
        self._brought.pop(self.rank, None)
        self._barrier.wait()


def on_ranks(size: int, work: Callable[[ThreadGroup], Result], where: Where = HERE) -> list[Result]:
    """What the work comes to on each rank; the first error of a rank's own is raised."""
    barrier, brought = Barrier(size), dict[int, Tensor]()

    def run(rank: int) -> Result:
        try:
            with where.rank(rank) as device:
                group = ThreadGroup(rank, barrier, brought, device)
                result = work(group)
                group.leave()
                return result
        except BaseException:
            barrier.abort()  # the others wait no longer
            raise

    with ThreadPoolExecutor(size) as pool:
        ended = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for one in ended if (error := one.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return [one.result() for one in ended]


class ThreadServer(Server):
    """A server over ranks in threads, which are sent what processes would be sent: pickles."""

    def __init__(
        self, run_spec: RunSpec, test: Shard, events: Events, size: int, where: Where = HERE
    ) -> None:
        super().__init__(run_spec, test, events, CPU)
        self.size, self._test, self._where = size, test, where

    def _on_each(
        self,
        method: Callable[[Rank, *Arguments], Any],
        arguments: Sequence[tuple[*Arguments]],
        returns: int = 1,
    ) -> list[Block]:
        sent = [pickle.dumps(own) for own in arguments]

        def work(group: ThreadGroup) -> Any:
            return _on_host(method(self._rank(group), *pickle.loads(sent[group.rank])))

        return on_ranks(self.size, work, self._where)

    def _get(self, blocks: Sequence[Block]) -> list[Any]:
        return list(blocks)

    def _share(self, value: Value) -> Value:
        shared: Any = _on_host(value)
        return shared

    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        sent = pickle.dumps(replace(spec, state_every=0))

        def work(group: ThreadGroup) -> list[Report]:
            return list(self._rank(group).fit(pickle.loads(sent)))

        yield from on_ranks(self.size, work, self._where)[0]

    def _rank(self, group: ThreadGroup) -> Rank:
        own = slice(group.rank, None, group.size)
        images, labels = self._test.images[own], self._test.labels[own]
        test = replace(self._test, samples=images, labels=labels)
        return Rank(self.run_spec, test, group.device, group)


def _on_host(value: Any) -> Any:
    """What leaves a rank: tensors on the host."""
    if isinstance(value, tuple):
        return tuple(map(_on_host, value))
    return value.cpu() if isinstance(value, Tensor) else value
