"""What bundles hold, and what clients and the server's ranks take of them.

Shares are counted in whole units: ten shares of 0.1 fill a GPU exactly.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

from fl.errors import UserError
from fl.federation import Request
from fl.report.words import size

UNITS = 10_000
"""Units in a core or a GPU; Ray counts in the same ones."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What one node, or one bundle of a placement group, has for clients."""

    name: str
    cpus: float
    gpus: int
    """Whole GPUs. A client's share lies on one of them and never spans two."""
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.cpus:g} cores, {self.gpus} GPUs and {size(self.memory_bytes)} of memory"


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A client's place in a bundle."""

    bundle: str
    gpu: int | None
    """Index of the GPU within the bundle, None for a client that has no share of one."""


class Need(NamedTuple):
    """A request in whole units of each kind."""

    cpus: int
    gpu: int
    memory_bytes: int
    waves: int = 0
    """1 for a wave of clients, of which a GPU takes one at a time: two would take turns on it."""


def need_of(request: Request, *, with_gpus: bool) -> Need:
    """What a client takes; where there are no GPUs, none is asked for."""
    gpu = _units(request.gpus) if with_gpus else 0
    waves = int(request.in_waves and gpu > 0)
    return Need(_units(request.cpus), gpu, request.memory_bytes, waves)


def _units(amount: float) -> int:
    return round(UNITS * amount)


class FreeCapacity:
    """What is free of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.cpus = _units(bundle.cpus)
        self.memory_bytes = bundle.memory_bytes
        self.gpus = [UNITS] * bundle.gpus
        self.waves = [1] * bundle.gpus

    def slots(self, need: Need) -> Iterator[Slot]:
        """Every slot of the kind that the need asks for, taken or not."""
        places = range(len(self.gpus)) if need.gpu else (None,)
        return (Slot(bundle=self.bundle.name, gpu=gpu) for gpu in places)

    def fits(self, need: Need, slot: Slot) -> bool:
        """Whether enough is free at that slot."""
        if self.cpus < need.cpus or self.memory_bytes < need.memory_bytes:
            return False
        if slot.gpu is None:
            return True
        return self.gpus[slot.gpu] >= need.gpu and self.waves[slot.gpu] >= need.waves

    def take(self, need: Need, slot: Slot) -> None:
        """Subtracts the need; what is free may become negative where a caller reckons ahead."""
        self.cpus -= need.cpus
        self.memory_bytes -= need.memory_bytes
        if slot.gpu is not None:
            self.gpus[slot.gpu] -= need.gpu
            self.waves[slot.gpu] -= need.waves

    def give(self, need: Need, slot: Slot) -> None:
        """Puts back what was taken."""
        self.take(Need(*(-amount for amount in need)), slot)

    def copy(self) -> "FreeCapacity":
        """The same free capacity, to reckon ahead with."""
        free = FreeCapacity(self.bundle)
        free.cpus, free.memory_bytes = self.cpus, self.memory_bytes
        free.gpus, free.waves = [*self.gpus], [*self.waves]
        return free


def capacity(bundles: Sequence[Bundle]) -> Need:
    """All that the bundles have together."""
    return Need(
        cpus=sum(_units(bundle.cpus) for bundle in bundles),
        gpu=sum(UNITS * bundle.gpus for bundle in bundles),
        memory_bytes=sum(bundle.memory_bytes for bundle in bundles),
        waves=sum(bundle.gpus for bundle in bundles),
    )


def at_once(bundle: Bundle, need: Need) -> int:
    """How many such clients fit the bundle at the same time."""
    fits = _units(bundle.cpus) // max(1, need.cpus)  # a share may be less than half a unit
    if need.memory_bytes:
        fits = min(fits, bundle.memory_bytes // need.memory_bytes)
    if need.gpu:  # a share never spans two GPUs, and a GPU takes one wave at a time
        of_one = 1 if need.waves else UNITS // need.gpu
        fits = min(fits, of_one * bundle.gpus)
    return fits


def could_fit(bundle: Bundle, need: Need) -> bool:
    """Whether the need fits the bundle when it is empty."""
    free = FreeCapacity(bundle)
    return any(free.fits(need, slot) for slot in free.slots(need))


def refusal(client: str, request: Request, bundles: Iterable[Bundle]) -> UserError:
    """The error for a request that fits no bundle: what was asked for and what there is."""
    there = "; ".join(map(str, bundles)) or "nothing"
    return UserError(
        f"{client} asks for {request.cpus:g} cores, {request.gpus:g} of a GPU and "
        f"{size(request.memory_bytes)} of memory, and fits nowhere: there is {there}"
    )


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
) -> tuple[float, ...]:
    """Seconds that each kind of capacity needs for the jobs if it could be divided at will.

    The order of the jobs makes no difference, to the last bit.
    """
    there = capacity(bundles)
    return tuple(
        fsum(need[kind] * seconds for need, seconds in jobs) / there[kind] if there[kind] else 0.0
        for kind in range(len(there))
    )


@dataclass(frozen=True, kw_only=True)
class RankPlacement:
    """The bundle in which a rank runs, with its GPU and threads."""

    bundle: str
    gpu: str | None
    """The name of its GPU for ``CUDA_VISIBLE_DEVICES`` on that node; None on cores."""
    threads: int


def place_ranks(
    bundles: Sequence[Bundle], ranks: int, gpus: Mapping[str, Sequence[str]]
) -> list[RankPlacement]:
    """Places each rank: on GPUs where there are any, else on cores, spread evenly.

    Args:
        bundles: where there is capacity.
        ranks: how many; if more than GPUs, some share one.
        gpus: names of each bundle's GPUs.
    """
    on_gpus: list[tuple[Bundle, str | None]] = [
        (bundle, gpu) for bundle in bundles for gpu in gpus.get(bundle.name, ())
    ]
    on_cores: list[tuple[Bundle, str | None]] = [(bundle, None) for bundle in bundles]
    places = on_gpus[:ranks] or on_cores
    slots = [places[i * len(places) // ranks] for i in range(ranks)]
    neighbours = Counter(bundle.name for bundle, _ in slots)
    return [
        RankPlacement(
            bundle=bundle.name, gpu=gpu, threads=max(1, int(bundle.cpus) // neighbours[bundle.name])
        )
        for bundle, gpu in slots
    ]


def world_size(asked: int | None, gpus: int) -> int:
    """Number of ranks: as asked, or all GPUs; without GPUs one. Raises `UserError` if more ranks
    than GPUs are asked for."""
    if asked is None:
        return max(1, gpus)
    if gpus and asked > gpus:
        raise UserError(f"fusion_ranks must be at most the {gpus} GPUs there are, got {asked}")
    return asked
