"""The server over a persistent group of ranks: Ray actors, on a GPU each or on cores.

No rank holds what a replacement could not be given: columns lie in Ray's object store, and states
of a fit in this process. When a rank dies the whole group is replaced, and its call is repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ray
import torch

from cluster.hardware.bundles import Bundles
from cluster.scheduling.capacity import RankPlacement
from cluster.server.rank_group import RankFailed, RankGroup, as_array, as_tensor
from fl.data.shard import Shard
from fl.errors import ServerFailed, UserError
from fl.events import Events, RankFailure
from fl.federation import RunSpec
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.fit import FitSpec
from fl.fusion.rank import Rank, Report
from fl.fusion.server import Arguments, Block, Server, Value

STATE_EVERY_S = 30.0
"""Seconds between states of a fit where no checkpoints are asked for; a restart needs one."""
ATTEMPTS = 3
"""At one call, before it has failed."""

Result = TypeVar("Result")


class FusionServer(Server):
    """:class:`fl.fusion.server.Server` over ranks in processes of their own.

    The ranks start at the first call, are reused by all that follow, and end with :meth:`close`.
    """

    def __init__(
        self,
        run_spec: RunSpec,
        test: Shard,
        events: Events,
        bundles: Bundles,
        place_ranks: Sequence[RankPlacement],
        *,
        timeout_s: float,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """``timeout_s``: of a collective."""
        super().__init__(run_spec, test, events, torch.device("cpu"), checkpoints)
        self.size = len(place_ranks)
        self._bundles, self.placements, self._test = bundles, place_ranks, test
        self._timeout_s = timeout_s
        self.group: RankGroup | None = None
        """The ranks; None until the first verb, and after :meth:`close`."""

    def release(self) -> None:
        """Has the ranks release the GPU memory that they hold but do not use."""
        if self.group:
            super().release()

    def close(self) -> None:
        """Ends all ranks."""
        if self.group:
            self.group.dismiss()
            self.group = None

    def _on_each(
        self,
        method: Callable[[Rank, *Arguments], Any],
        arguments: Sequence[tuple[*Arguments]],
        returns: int = 1,
    ) -> list[Block]:
        def call(group: RankGroup) -> Iterator[list[Block]]:
            results = [
                actor.call.options(num_returns=returns + 1).remote(
                    method, *(as_array(a) for a in own)
                )
                for actor, own in zip(group.actors, arguments, strict=True)
            ]
            # Waits for the last result alone, which is empty: the others stay in the object store.
            group.get([results[-1] for results in results])
            yield [r[0] if returns == 1 else tuple(r[:-1]) for r in results]

        (blocks,) = self._persistently(call)
        return blocks

    def _get(self, results: Sequence[Block]) -> list[Any]:
        return [as_tensor(value) for value in ray.get(list(results))]

    def _share(self, value: Value) -> Value:
        shared: Any = ray.put(as_array(value))
        return shared

    def _fit(self, spec: FitSpec, done: int) -> Iterator[Report]:
        # A restart needs a state to go on from, even where no checkpoints are asked for.
        every = STATE_EVERY_S if spec.state_every is None else spec.state_every
        spec = replace(spec, model=self._share(spec.model.cpu()), state_every=every)
        last = done

        def go_on(group: RankGroup) -> Iterator[Report]:
            nonlocal spec, last
            for report in group.fit(spec):
                spec = replace(spec, state=report.state or spec.state)
                if report.epoch > last:  # after a restart some come once more
                    last = report.epoch
                    yield report

        yield from self._persistently(go_on)

    def _persistently(self, work: Callable[[RankGroup], Iterator[Result]]) -> Iterator[Result]:
        """Does the work; after a failure once more, with new ranks."""
        failures = 0
        while True:
            try:
                yield from work(self._present())
                return
            except RankFailed as failure:
                failures += 1
                self._replace(failure, failures)

    def _present(self) -> RankGroup:
        if self.group is None:
            self.group = RankGroup(
                self._bundles, self.placements, self.run_spec, self._test, self._timeout_s
            )
        return self.group

    def _replace(self, failure: RankFailed, failures: int) -> None:
        """Ends the ranks after a failure; the next call starts new ones. Raises the `UserError`
        that a rank raised, or `ServerFailed` if its own code failed or this was the last
        attempt."""
        self.close()
        event = RankFailure(rank=failure.rank, attempt=failures, reason=failure.reason)
        self.events.emit(event)
        if failure.error is not None:
            cause = getattr(failure.error, "cause", None)
            if isinstance(cause, UserError):
                raise cause
            raise ServerFailed(str(failure)) from failure.error
        if failures >= ATTEMPTS:
            raise ServerFailed(f"{failure} (attempt {failures} of {failures})") from failure
        self.restarts += 1
