"""The fusion server with a single rank, in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fl.data.shard import Shard
from fl.events import Events
from fl.federation import Batch, RunSpec
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import FitSpec
from fl.fusion.rank import Rank, Report
from fl.fusion.ranked_server import Arguments, Block, RankedServer, Value
from fl.fusion.synthesis import Drawn, plan_draws
from fl.models import Decoder
from fl.server import Samples


class SingleServer(RankedServer):
    """One rank, in this process."""

    size = 1
    decoders_at_once = None

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

    def sample_early(
        self,
        decoders: Mapping[int, Decoder],
        allocation: np.ndarray,
        *,
        latent: int,
        stream: str = "synthesis",
    ) -> None:
        """See :meth:`fl.server.Server.sample_early`. A GPU is the clients' until they are done."""
        if self.device.type != "cpu":
            return
        for client, counts in zip(decoders, allocation, strict=True):
            if draws := plan_draws([client], counts[None]):
                images, _, z = self._rank.sample(decoders, draws, latent, stream, {})
                self._early.add(stream, client, Drawn(counts, images, z))

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

    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        return self._rank.fit(spec)
