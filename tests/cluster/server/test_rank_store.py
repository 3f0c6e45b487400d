"""The store of ranks on several nodes, on a Ray without processes."""

from datetime import timedelta

import pytest
import torch.distributed as dist
from ray.exceptions import ActorDiedError

from cluster.server import rank_store
from cluster.server.rank_store import Keeper, RankStore
from fl.fusion.group import PeerLostError
from tests.cluster.fake_ray import FakeActor, FakeRay, Reference


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> FakeActor:
    monkeypatch.setattr(rank_store, "ray", FakeRay(Keeper))
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
        def check(self, keys: list[str]) -> Reference:
            return Reference(error=ActorDiedError())

    with pytest.raises(PeerLostError, match="is gone"):
        RankStore(FakeActor(Dead(), {})).check(["here"])
