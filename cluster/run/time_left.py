"""How long a phase is expected to go on, from measured rates and from what is over."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean

from cluster.hardware.inventory import Inventory
from cluster.scheduling.rates import Rates
from fl.events import (
    ClientDropped,
    ClientEnd,
    ClientProgress,
    ClientStart,
    Epoch,
    Event,
    Phase,
    RoundEnd,
)
from fl.federation import Client

LEAST_S = 1.0
"""Expectations below this are not worth telling."""
FEW = 64
"""Clients left among which the longest is looked for."""


class TimeLeft:
    """When phases are expected to end, by the events of a run.

    Args:
        members: the clients.
        rates: seconds per unit of work by model, measured before the run.
        at_once: clients that compute at once.
    """

    def __init__(
        self,
        members: tuple[Client, ...],
        rates: Mapping[str, float] | None = None,
        at_once: int = 1,
    ) -> None:
        self._local = _Local(members, rates or {}, at_once)
        self._rounds: list[float] = []
        self._fits: dict[str, tuple[float, int]] = {}
        self._since = 0.0
        self.ends: dict[str, float] = {}
        """By phase, ``rounds`` or stage of a fit: expected end in seconds since the run began."""

    def __call__(self, event: Event) -> None:
        """Learns from what happened."""
        match event:
            case Phase(status="start"):
                self._since = event.seconds
                self._fits.clear()
                if event.phase == "local":
                    self._local.begin()
            case ClientStart() | ClientProgress() | ClientEnd() | ClientDropped():
                self._expect("local", self._local.left(event), event.seconds)
            case RoundEnd():
                self._rounds.append(sum(event.took.values()))
                left = fmean(self._rounds) * (event.rounds - event.round)
                self._expect("rounds", left, event.seconds)
            case Epoch():
                # A fit that goes on after it was killed does not begin with the first epoch.
                first = self._since, event.epoch - 1
                began, before = self._fits.setdefault(event.stage, first)
                self._since = event.seconds
                each = (event.seconds - began) / max(1, event.epoch - before)
                self._expect(event.stage, each * (event.epochs - event.epoch), event.seconds)

    def left(self, name: str, now: float) -> float | None:
        """Seconds from ``now`` to the expected end; None where nothing worth telling is known."""
        left = self.ends.get(name, now) - now
        return left if left >= LEAST_S else None

    def _expect(self, name: str, left: float | None, now: float) -> None:
        if left is None:
            self.ends.pop(name, None)
        else:
            self.ends[name] = now + left


class _Local:
    """A map's clients: the work that is left, and the pace at which it gets less.

    At first the pace is that of the measured rates, with all slots in use. The more of the work is
    done, the more it is what the clock says of this map: waits, starts and uploads included.
    """

    def __init__(
        self, members: tuple[Client, ...], rates: Mapping[str, float], at_once: int
    ) -> None:
        self._work = {c.id: (c.model, c.training.work(c.num_samples)) for c in members}
        self._rates = Rates(rates)
        self._at_once = at_once
        self.begin()

    def begin(self) -> None:
        """Forgets the map before, but not the rates."""
        self._waiting = set(self._work)
        self._share: dict[int, float] = {}
        self._left: defaultdict[str, float] = defaultdict(float)
        self._done: defaultdict[str, float] = defaultdict(float)
        for model, work in self._work.values():
            self._left[model] += work
        self._began: float | None = None

    def left(self, event: ClientStart | ClientProgress | ClientEnd | ClientDropped) -> float | None:
        """Expected seconds from the event on; None as long as no rate is known."""
        self._note(event)
        if not self._rates.current:
            return None
        left, done = self._seconds(self._left), self._seconds(self._done)
        by_rates = max(left / self._at_once, self._longest())
        if done <= 0 or self._began is None:
            return by_rates
        by_clock = (event.seconds - self._began) * left / done
        trust = done / (done + left)
        return (1 - trust) * by_rates + trust * by_clock

    def _note(self, event: ClientStart | ClientProgress | ClientEnd | ClientDropped) -> None:
        if event.client not in self._waiting:
            return
        match event:
            case ClientStart():
                self._began = event.seconds if self._began is None else self._began
                self._move(event.client, 0.0)  # tried again, it begins anew
            case ClientProgress(of=int(of)):
                self._move(event.client, event.done / of)
            case ClientEnd(reused=False):
                model, work = self._work[event.client]
                self._rates.learn(model, work, event.seconds_training)
                self._move(event.client, 1.0)
                self._waiting.discard(event.client)
            case ClientEnd() | ClientDropped():
                model, work = self._work[event.client]
                self._left[model] -= work * (1 - self._share.get(event.client, 0.0))
                self._waiting.discard(event.client)

    def _move(self, client: int, share: float) -> None:
        """Counts this share of the client's work as done. Sums by model, for any number of them."""
        model, work = self._work[client]
        moved = work * (share - self._share.get(client, 0.0))
        self._share[client] = share
        self._done[model] += moved
        self._left[model] -= moved

    def _seconds(self, work: Mapping[str, float]) -> float:
        return sum(max(0.0, w) * self._rates.rate(model) for model, w in work.items())

    def _longest(self) -> float:
        """What the longest client needs by itself, near the end, when that decides."""
        if len(self._waiting) > FEW:
            return 0.0
        left = ((*self._work[k], self._share.get(k, 0.0)) for k in self._waiting)
        return max((w * (1 - share) * self._rates.rate(m) for m, w, share in left), default=0.0)


def clients_at_once(
    members: tuple[Client, ...], inventory: Inventory, most: int | None = None
) -> int:
    """How many of the clients compute at once, if all ask for as much as they do on the mean."""
    cpus = fmean(c.request.cpus for c in members)
    gpus = fmean(c.request.gpus for c in members)
    memory = fmean(c.request.memory_bytes for c in members)
    room = [len(members), most or len(members), inventory.cpus / cpus]
    if gpus and inventory.gpus:
        room.append(len(inventory.gpus) / gpus)
    if memory and inventory.memory_bytes:
        room.append(inventory.memory_bytes / memory)
    return max(1, int(min(room)))


def about(seconds: float) -> str:
    """A duration as people say it.

    >>> about(38), about(301), about(9000)
    ('about 40 s', 'about 5 min', 'about 2.5 h')
    """
    if seconds < 90:
        return f"about {max(1, round(seconds)) if seconds < 10 else 5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"
