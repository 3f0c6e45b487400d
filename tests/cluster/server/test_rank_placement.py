import pytest

from cluster.scheduling.capacity import Bundle
from cluster.server.rank_placement import RankPlacement, place_ranks, world_size
from fl.errors import UserError


def bundle(name: str, cpus: float, gpus: int = 0) -> Bundle:
    return Bundle(name=name, cpus=cpus, gpus=gpus, memory_bytes=0)


def test_there_are_as_many_ranks_as_gpus_unless_fewer_are_asked_for() -> None:
    assert world_size(None, 4) == 4
    assert world_size(3, 4) == 3
    assert world_size(None, 0) == 1
    assert world_size(3, 0) == 3


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(UserError, match="at most the 2 GPUs there are, got 3"):
        world_size(3, 2)


def test_each_rank_has_a_gpu_of_its_own_and_its_share_of_the_cores() -> None:
    bundles = [bundle("0", 9, gpus=2), bundle("1", 4), bundle("2", 8, gpus=1)]
    gpus = {"0": ["4", "7"], "2": ["0"]}
    assert place_ranks(bundles, 3, gpus) == [
        RankPlacement(bundle="0", gpu="4", threads=4),
        RankPlacement(bundle="0", gpu="7", threads=4),
        RankPlacement(bundle="2", gpu="0", threads=8),
    ]
    assert place_ranks(bundles, 1, gpus) == [RankPlacement(bundle="0", gpu="4", threads=9)]


def test_more_ranks_than_gpus_share_them() -> None:
    bundles, gpus = [bundle("0", 8, gpus=1), bundle("1", 8, gpus=1)], {"0": ["0"], "1": ["5"]}
    placed = place_ranks(bundles, 3, gpus)
    assert [(p.bundle, p.gpu, p.threads) for p in placed] == [
        ("0", "0", 4),
        ("0", "0", 4),
        ("1", "5", 8),
    ]


def test_without_gpus_ranks_spread_over_the_rooms() -> None:
    bundles = [bundle("0", 2), bundle("1", 2)]
    assert [(p.bundle, p.gpu, p.threads) for p in place_ranks(bundles, 3, {})] == [
        ("0", None, 1),
        ("0", None, 1),
        ("1", None, 2),
    ]
    assert [p.threads for p in place_ranks(bundles[:1], 5, {})] == [1] * 5
