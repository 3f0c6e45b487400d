"""How many ranks the server has, and where they sit. Pure: no Ray."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.capacity import Room
from fl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Post:
    """Where a rank sits, and with what."""

    room: str
    gpus: int
    threads: int


def posts(rooms: Sequence[Room], ranks: int) -> list[Post]:
    """One for each rank: a whole GPU each where there are GPUs, else cores, room after room."""
    with_gpus = [room for room in rooms for _ in range(room.gpus)]
    seats = with_gpus[:ranks] or [rooms[i * len(rooms) // ranks] for i in range(ranks)]
    return [
        Post(
            room=room.name,
            gpus=int(bool(with_gpus)),
            threads=max(1, int(room.cpus) // seats.count(room)),
        )
        for room in seats
    ]


def world_size(asked: int | None, gpus: int) -> int:
    """Number of ranks: as asked, or all GPUs; without GPUs one.

    Raises:
        UserError: more ranks than GPUs.
    """
    if asked is None:
        return max(1, gpus)
    if gpus and asked > gpus:
        raise UserError(f"fusion_ranks must be at most the {gpus} GPUs there are, got {asked}")
    return asked
