"""The fusion server with a single rank, in this process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fl.data.shard import Shard
from fl.events import Events
from fl.federation import RunSpec
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import FitSpec
from fl.fusion.rank import Rank, Report
from fl.fusion.server import Arguments, Block, Server, Value


class SingleServer(Server):
    """One rank, in this process."""

    size = 1
    decoders_at_once = None
    trains_in_place = True

    def __init__(
        self,
        run_spec: RunSpec,
        test: Shard,
        events: Events,
        device: torch.device,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        super().__init__(run_spec, test, events, device, checkpoints)
        self.draws_early = device.type == "cpu"  # a GPU is the clients' until they are done
        self._rank = Rank(run_spec, test, device)

    def _on_each(
        self,
        method: Callable[[Rank, *Arguments], Any],
        arguments: Sequence[tuple[*Arguments]],
        returns: int = 1,
    ) -> list[Block]:
        return [method(self._rank, *own) for own in arguments]

    def _get(self, blocks: Sequence[Block]) -> list[Any]:
        return list(blocks)

    def _share(self, value: Value) -> Value:
        return value

    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        return self._rank.fit(spec)
