"""How many ranks the server has, and where they sit. Pure: no Ray."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling.capacity import Bundle
from fl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class RankPlacement:
    """Where a rank sits, and with what."""

    bundle: str
    gpu: str | None
    """What ``CUDA_VISIBLE_DEVICES`` calls its GPU there."""
    threads: int


def place_ranks(
    bundles: Sequence[Bundle], ranks: int, gpus: Mapping[str, Sequence[str]]
) -> list[RankPlacement]:
    """One for each rank: on a GPU of its own where there are GPUs, else on cores, room after room.

    Args:
        rooms: where there is capacity.
        ranks: how many; no more than GPUs, if there are any.
        gpus: names of each room's GPUs.
    """
    on_gpus = [(bundle, gpu) for bundle in bundles for gpu in gpus.get(bundle.name, ())]
    on_cores = [(bundles[i * len(bundles) // ranks], None) for i in range(ranks)]
    slots = on_gpus[:ranks] or on_cores
    neighbours = Counter(bundle.name for bundle, _ in slots)
    return [
        RankPlacement(
            bundle=bundle.name, gpu=gpu, threads=max(1, int(bundle.cpus) // neighbours[bundle.name])
        )
        for bundle, gpu in slots
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
