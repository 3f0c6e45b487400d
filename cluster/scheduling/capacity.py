"""What rooms hold and clients take, in whole units: ten shares of 0.1 fill a GPU exactly."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fl.errors import UserError
from fl.federation import Request
from fl.report.words import size

UNITS = 10_000
"""Parts of a core or a GPU; Ray counts in the same ones."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What one node, or one bundle of a placement group, has for clients."""

    name: str
    cpus: float
    gpus: int
    """Whole GPUs. A client's share lies on one of them and never spans two."""
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.cpus:g} cores, {self.gpus} GPUs and {size(self.memory_bytes)} of memory"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a client sits."""

    room: str
    gpu: int | None
    """Index of the GPU within the room, None for a client that has no share of one."""


class Need(NamedTuple):
    """A request in whole units of each kind."""

    cpus: int
    gpu: int
    memory_bytes: int


def need_of(request: Request, *, with_gpus: bool) -> Need:
    """What a client takes; where there are no GPUs, none is asked for."""
    gpu = _units(request.gpus) if with_gpus else 0
    return Need(_units(request.cpus), gpu, request.memory_bytes)


def _units(amount: float) -> int:
    return round(UNITS * amount)


class Space:
    """What is left of a room."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.cpus = _units(room.cpus)
        self.memory_bytes = room.memory_bytes
        self.gpus = [UNITS] * room.gpus

    def seats(self, need: Need) -> Iterator[Seat]:
        """Every seat of the kind that the need asks for, taken or not."""
        places = range(len(self.gpus)) if need.gpu else (None,)
        return (Seat(room=self.room.name, gpu=gpu) for gpu in places)

    def fits(self, need: Need, seat: Seat) -> bool:
        """Whether enough is left at that seat."""
        enough = self.cpus >= need.cpus and self.memory_bytes >= need.memory_bytes
        return enough and (seat.gpu is None or self.gpus[seat.gpu] >= need.gpu)

    def take(self, need: Need, seat: Seat) -> None:
        """Takes the need away; what is left may become negative, where one reckons ahead."""
        self.cpus -= need.cpus
        self.memory_bytes -= need.memory_bytes
        if seat.gpu is not None:
            self.gpus[seat.gpu] -= need.gpu

    def give(self, need: Need, seat: Seat) -> None:
        """Puts back what was taken."""
        self.take(Need(-need.cpus, -need.gpu, -need.memory_bytes), seat)

    def copy(self) -> "Space":
        """The same space, to reckon ahead in."""
        space = Space(self.room)
        space.cpus, space.memory_bytes, space.gpus = self.cpus, self.memory_bytes, [*self.gpus]
        return space


def capacity(rooms: Iterable[Room]) -> Need:
    """All that the rooms have together."""
    spaces = [Space(room) for room in rooms]
    return Need(
        cpus=sum(space.cpus for space in spaces),
        gpu=sum(sum(space.gpus) for space in spaces),
        memory_bytes=sum(space.memory_bytes for space in spaces),
    )


def could_seat(room: Room, need: Need) -> bool:
    """Whether the need fits the room when it is empty."""
    space = Space(room)
    return any(space.fits(need, seat) for seat in space.seats(need))


def refusal(who: str, request: Request, rooms: Iterable[Room]) -> UserError:
    """The error for a request that fits no room: what was asked for and what there is."""
    there = "; ".join(map(str, rooms)) or "nothing"
    return UserError(
        f"{who} asks for {request.cpus:g} cores, {request.gpus:g} of a GPU and "
        f"{size(request.memory_bytes)} of memory, and fits nowhere: there is {there}"
    )
