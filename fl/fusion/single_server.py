"""The fusion server with a single rank, in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fl.data.shard import Shard
from fl.events import Events
from fl.federation import Batch, RunSpec
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import FitSpec
from fl.fusion.rank import Rank, Report
from fl.fusion.ranked_server import Arguments, Block, RankedServer, Value
from fl.fusion.synthesis import Draw
from fl.models import Decoder
from fl.server import Samples


class SingleServer(RankedServer):
    """One rank, in this process."""

    size = 1

    def __init__(
        self,
        run_spec: RunSpec,
        test: Shard,
        events: Events,
        device: torch.device,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        super().__init__(run_spec, test, events, device, checkpoints)
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

    def place(self, data: Batch) -> Samples:
        """See :meth:`RankedServer.place`."""
        count = len(next(iter(data.values())))
        return Samples(columns={n: (t,) for n, t in data.items()}, counts=(count,))

    def _share(self, value: Value) -> Value:
        return value

    def _part(
        self, decoders: Mapping[int, Decoder], draws: Sequence[Draw]
    ) -> Mapping[int, Decoder]:
        return decoders  # the mapping itself, which may read one decoder at a time

    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        return self._rank.fit(spec)
