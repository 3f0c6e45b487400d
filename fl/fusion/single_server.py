"""The server of one rank, in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fl.data.shard import Shard
from fl.events import Events
from fl.federation import Batch, Problem
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import FitSpec
from fl.fusion.rank import Rank, Report
from fl.fusion.ranked_server import Arguments, Kept, RankedServer, Value
from fl.fusion.synthesis import Draw
from fl.models import Decoder
from fl.server import Samples


class SingleServer(RankedServer):
    """One rank, in this process."""

    size = 1

    def __init__(
        self,
        problem: Problem,
        test: Shard,
        events: Events,
        device: torch.device,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        super().__init__(problem, test, events, device, checkpoints)
        self._rank = Rank(problem, test, device)

    def _on_each(
        self,
        method: Callable[[Rank, *Arguments], Any],
        arguments: Sequence[tuple[*Arguments]],
        returns: int = 1,
    ) -> list[Kept]:
        return [method(self._rank, *own) for own in arguments]

    def _get(self, kept: Sequence[Kept]) -> list[Any]:
        return list(kept)

    def _place(self, data: Batch) -> Samples:
        count = len(next(iter(data.values())))
        return Samples(columns={n: (t,) for n, t in data.items()}, counts=(count,))

    def _share(self, value: Value) -> Value:
        return value

    def _part(
        self, decoders: Mapping[int, Decoder], draws: Sequence[Draw]
    ) -> Mapping[int, Decoder]:
        return decoders  # which may be read one at a time

    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        return self._rank.fit(spec)
