"""The server's ranks as a group: what each is given, and who of them is to blame.

On a Ray without processes; tests/cluster/server/test_fusion_server.py has real ones.
"""

import os
import socket
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ray.exceptions import ActorDiedError, RayTaskError

from cluster.hardware.bundles import Bundles
from cluster.scheduling.capacity import RankPlacement, place_ranks, world_size
from cluster.server import rank_group
from cluster.server.rank_group import (
    Keeper,
    RankFailed,
    RankGroup,
    RankStore,
    as_array,
    as_tensor,
    use_interface_of,
)
from fl.data.shard import Shard
from fl.errors import UserError
from fl.fusion.group import PeerLostError
from tests.cluster.fake_ray import FakeActor, FakeRay, Reference, Stream
from tests.cluster.placing import bundle
from tests.fl.toy import PROBLEM, shard

TEST = replace(shard(3, 4, 4), domains=torch.arange(11) % 2)


def raised(error: Exception) -> Reference:
    return Reference(error=RayTaskError("fit", "the rank's traceback", error))


LOST = "rank waited 3.0 s for the others"
DIED = Reference(error=ActorDiedError())
SILENT = Reference(ready=False)


def lost() -> Reference:
    return raised(PeerLostError(LOST))


class Scripted:
    """A rank that answers as a test says."""

    def __init__(self, number: int, fit: list[Reference], join: Reference) -> None:
        self.number, self.script, self.joining = number, fit, join
        self.tested: Shard | None = None

    def identity(self) -> str:
        return f"process {self.number} on a host"

    def join(
        self, _: Any, test: Shard, number: int, size: int, meeting: Any, secret: bytes, *__: Any
    ) -> Reference:
        self.tested, self.meeting, self.secret = test, meeting, secret
        return self.joining

    def fit(self, spec: Any) -> Stream:
        return Stream(self.script)


class Ranks:
    """Starts groups of ranks that answer so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(rank_group, "WITNESS_S", 0.05)

    def start(
        self,
        *scripts: list[Reference],
        joins: dict[int, Reference] | None = None,
        node: str = "another node",
    ) -> Any:
        numbers = count()

        def make(*arguments: Any) -> Scripted | Keeper:
            if not arguments:
                return Keeper()
            number = next(numbers)
            join = (joins or {}).get(number, Reference())
            return Scripted(number, scripts[number], join)

        self.ray = FakeRay(make)
        self.monkeypatch.setattr(rank_group, "ray", self.ray)
        where = [RankPlacement(bundle="0", gpu=None, threads=1) for _ in scripts]
        bundles = Bundles(group=None, all=(bundle("0"),), nodes={"0": node})
        return RankGroup(bundles, where, PROBLEM, TEST, timeout_s=1.0)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(monkeypatch)


def test_the_first_ranks_reports_are_those_of_the_group(ranks: Ranks) -> None:
    spec: Any = None
    first, second = ([Reference((rank, k)) for k in range(3)] for rank in range(2))
    group = ranks.start(first, second)
    assert list(group.fit(spec)) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("scripts", "rank", "reason"),
    [
        (
            [[lost()], [Reference(1), lost()], [raised(ZeroDivisionError("on purpose"))]],
            *(2, "raised ZeroDivisionError: on purpose"),
        ),
        ([[lost()], [DIED], [lost()]], 1, "died (ActorDiedError)"),
        ([[lost()], [lost()], [SILENT]], 2, f"was silent: {LOST}"),  # all others wait for it
        ([[lost()], [lost()]], 0, f"was silent: {LOST}"),  # who lost each other
    ],
)
def test_who_failed_is_to_blame_and_not_who_noticed(
    ranks: Ranks, scripts: list[list[Reference]], rank: int, reason: str
) -> None:
    spec: Any = None
    group = ranks.start(*scripts)
    with pytest.raises(RankFailed) as caught:
        list(group.fit(spec))
    failed = caught.value
    assert (failed.rank, failed.reason) == (rank, reason)
    assert str(failed) == f"rank {rank} of the server (process {rank} on a host) {reason}"
    # Who died or was silent may be replaced.
    assert (failed.error is None) is not reason.startswith("raised")


def test_results_come_in_the_order_of_the_ranks(ranks: Ranks) -> None:
    group = ranks.start([], [])
    assert group.get([Reference("a"), Reference("b")]) == ["a", "b"]
    with pytest.raises(RankFailed, match=r"rank 1 .* raised ValueError: no"):
        group.get([Reference("a"), raised(ValueError("no"))])


def test_a_group_that_does_not_come_together_leaves_no_process(ranks: Ranks) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 .*process 1 on a host.* died"):
        ranks.start([], [], joins={1: DIED})
    assert ranks.ray.ended == ranks.ray.actors


def test_ranks_on_this_node_meet_in_a_file_which_goes_with_them(ranks: Ranks) -> None:
    group = ranks.start([], [], node="this node")
    (file,) = {actor.behind.meeting for actor in ranks.ray.actors}
    assert file.parent.is_dir()
    group.dismiss()
    assert not file.parent.exists()
    ranks.start([])
    assert ranks.ray.actors[0].behind.meeting is None  # a rank alone opens no port


def test_ranks_on_several_nodes_meet_at_a_process_which_goes_with_them(ranks: Ranks) -> None:
    group = ranks.start([], [])
    *actors, keeper = ranks.ray.actors
    assert {actor.behind.meeting for actor in actors} == {keeper}
    group.dismiss()
    assert ranks.ray.ended == ranks.ray.actors


def test_every_group_has_a_secret_of_its_own(ranks: Ranks) -> None:
    told = set()
    for _ in range(2):
        ranks.start([], [], node="this node")
        (secret,) = {actor.behind.secret for actor in ranks.ray.actors}
        told.add(secret)
    assert [len(secret) for secret in told] == [32, 32]


def test_each_rank_holds_its_part_of_the_test_split(ranks: Ranks) -> None:
    ranks.start([], [], [], node="this node")
    for k, actor in enumerate(ranks.ray.actors):
        own = actor.behind.tested
        assert own.num_classes == TEST.num_classes
        for name in ("images", "labels", "domains"):
            assert torch.equal(getattr(own, name), getattr(TEST, name)[k::3])


def test_tensors_travel_as_arrays_over_the_same_memory() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    array = as_array(tensor)
    array.flags.writeable = False  # as Ray's object store gives it
    back = as_tensor(array)
    assert torch.equal(back, tensor)
    assert back.data_ptr() == tensor.data_ptr()
    for other in (None, 3, "text", (tensor,)):
        assert as_tensor(as_array(other)) is other


def test_there_are_as_many_ranks_as_gpus_unless_fewer_are_asked_for() -> None:
    assert [world_size(*of) for of in ((None, 4), (3, 4), (None, 0), (3, 0))] == [4, 3, 1, 3]
    with pytest.raises(UserError, match="at most the 2 GPUs there are, got 3"):
        world_size(3, 2)


@pytest.mark.parametrize(
    ("cpus", "gpus", "ranks", "placed"),
    [
        ([9, 4, 8], [["4", "7"], [], ["0"]], 3, [("0", "4", 4), ("0", "7", 4), ("2", "0", 8)]),
        ([9, 4, 8], [["4", "7"], [], ["0"]], 1, [("0", "4", 9)]),
        ([8, 8], [["0"], ["5"]], 3, [("0", "0", 4), ("0", "0", 4), ("1", "5", 8)]),  # shared
        ([2, 2], [[], []], 3, [("0", None, 1), ("0", None, 1), ("1", None, 2)]),
        ([2], [[]], 5, [("0", None, 1)] * 5),
    ],
)
def test_each_rank_has_a_gpu_where_there_are_any_and_its_share_of_the_cores(
    cpus: list[float], gpus: list[list[str]], ranks: int, placed: list[tuple[str, str, int]]
) -> None:
    names = {str(k): own for k, own in enumerate(gpus) if own}
    bundles = [bundle(str(k), cores, len(gpus[k])) for k, cores in enumerate(cpus)]
    found = place_ranks(bundles, ranks, names)
    assert [(each.bundle, each.gpu, each.threads) for each in found] == placed


def test_gloo_and_nccl_are_told_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    use_interface_of("127.0.0.1")
    loopback = os.environ["GLOO_SOCKET_IFNAME"]
    assert loopback == os.environ["NCCL_SOCKET_IFNAME"]
    assert loopback in {name for _, name in socket.if_nameindex()}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    use_interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> FakeActor:
    monkeypatch.setattr(rank_group, "ray", FakeRay(Keeper))
    return FakeActor(Keeper(), {})


def test_what_one_sets_another_gets_also_through_torchs_prefix(keeper: FakeActor) -> None:
    stores = RankStore(keeper), RankStore(keeper)
    first, second = (dist.PrefixStore("group", store) for store in stores)
    first.set("address", b"\x00\xff")
    assert second.get("address") == b"\x00\xff"
    assert [first.add("count", 1), second.add("count", 2)] == [1, 3]
    assert second.get("count") == b"3"
    assert second.check(["address"])
    assert not second.check(["address", "another"])
    assert not stores[0].check(["address"])


def test_who_waits_is_told_which_key_is_missing(keeper: FakeActor) -> None:
    store = RankStore(keeper)
    store.set("here", "first")
    store.wait(["here"])
    with pytest.raises(PeerLostError, match=r"no rank has set here, there within 0\.05 s"):
        store.wait(["here", "there"], timedelta(seconds=0.05))


def test_a_process_that_died_is_a_lost_peer() -> None:
    class Dead:
        def ask(self, verb: str, *arguments: Any) -> Reference:
            return Reference(error=ActorDiedError())

    with pytest.raises(PeerLostError, match="is gone"):
        RankStore(FakeActor(Dead(), {})).check(["here"])
