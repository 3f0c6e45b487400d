"""How many ranks the server has, and where they sit. Pure: no Ray."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling.capacity import Room
from fl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Post:
    """Where a rank sits, and with what."""

    room: str
    gpu: str | None
    """What ``CUDA_VISIBLE_DEVICES`` calls its GPU there."""
    threads: int


def posts(rooms: Sequence[Room], ranks: int, gpus: Mapping[str, Sequence[str]]) -> list[Post]:
    """One for each rank: on a GPU of its own where there are GPUs, else on cores, room after room.

    Args:
        rooms: where there is capacity.
        ranks: how many; no more than GPUs, if there are any.
        gpus: names of each room's GPUs.
    """
    on_gpus = [(room, gpu) for room in rooms for gpu in gpus.get(room.name, ())]
    on_cores = [(rooms[i * len(rooms) // ranks], None) for i in range(ranks)]
    seats = on_gpus[:ranks] or on_cores
    neighbours = Counter(room.name for room, _ in seats)
    return [
        Post(room=room.name, gpu=gpu, threads=max(1, int(room.cpus) // neighbours[room.name]))
        for room, gpu in seats
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
