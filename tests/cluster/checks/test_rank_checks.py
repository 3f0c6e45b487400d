"""Ranks in real processes: their fit and their sum, and one of them dead."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cluster.checks.check import CheckFailed, CheckSkipped
from cluster.checks.federation import SPEC, shard
from cluster.checks.rank_checks import (
    CHECKS,
    compare_fits,
    sum_between_gpus,
    sum_over,
)
from cluster.hardware.bundles import Bundles, open_bundles
from cluster.hardware.inventory import take_inventory
from cluster.hardware.private_ray import private_ray
from cluster.scheduling.capacity import Bundle
from cluster.server.fusion_server import FusionServer
from cluster.server.rank_group import RankFailed
from cluster.server.rank_placement import place_ranks
from fl.events import Events
from fl.fusion.ranked_server import ServerFailed
from fl.fusion.single_server import SingleServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(template: Path | None) -> Iterator[FusionServer]:
    """Two ranks on cores; the last test kills one."""
    memory = min(take_inventory().memory_bytes, 2**30)
    own = private_ray(cpus=2, gpus=0, memory_bytes=memory, template=template)
    with own, open_bundles() as bundles:
        where = place_ranks(bundles.all, 2, {})
        made = FusionServer(SPEC, shard(), Events(), bundles, where, timeout_s=20, attempts=1)
        with closing(made):
            yield made


def test_two_ranks_fit_as_one(server: FusionServer) -> None:
    assert compare_fits(server).startswith("the weights of 2 ranks are those of one")


def test_two_ranks_sum(server: FusionServer) -> None:
    assert server.group
    assert sum_over(server.group, on_gpus=False).startswith("2 ranks sum 67.1 MB in ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is there")
def test_a_rank_without_the_gpu_that_it_was_given_fails(server: FusionServer) -> None:
    assert server.group
    with pytest.raises(RankFailed, match="PyTorch sees no GPU in a process that was given one"):
        sum_over(server.group, on_gpus=True)


def test_a_rank_that_dies_fails_by_its_number(server: FusionServer) -> None:
    assert server.group
    dead = server.group.actors[1]
    dead.call.remote(lambda _: os._exit(1))
    with pytest.raises(ServerFailed, match=r"rank 1 of the server \(process \d+ on .*\) died"):
        compare_fits(server)
    assert server.restarts == 0


def test_ranks_that_fit_another_model_fail() -> None:
    other = SingleServer(replace(SPEC, seed=1), shard(), Events(), torch.device("cpu"))
    with pytest.raises(CheckFailed, match=r"weights differ by up to .* from those of one rank"):
        compare_fits(other)


@pytest.mark.parametrize(("gpus", "reason"), [(0, "no GPU"), (1, "one GPU")])
def test_nccl_needs_two_gpus(gpus: int, reason: str) -> None:
    bundle = Bundle(name="0", cpus=2, gpus=gpus, memory_bytes=2**30)
    with pytest.raises(CheckSkipped, match=reason):
        sum_between_gpus(Bundles(group=None, all=(bundle,), nodes={}))


def test_what_fails_has_advice() -> None:
    assert all("--fusion-ranks 1" in check.advice for check in CHECKS)
