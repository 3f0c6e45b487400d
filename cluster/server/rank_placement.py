"""How many ranks the server has, and in which bundles they run. Pure: no Ray."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.scheduling.capacity import Bundle
from fl.errors import UserError


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
