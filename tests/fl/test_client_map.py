"""A client's memory and what is set apart of its upload, by a task that counts its calls."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from cluster.clients.store import Store
from fl.client_map import GoesTo, Recipient, covered
from fl.clients import Clients
from fl.errors import ClientFailed, UserError
from fl.events import Events
from fl.executor import InProcess
from fl.federation import TaskInput, TaskOutput, Update, UpdateStore
from tests.fl.methods.tiny import NoStore
from tests.fl.toy import PROBLEM, client, split

TRAIN = split(4, 4, 4)
IDS = range(3)


def counts(inputs: TaskInput) -> TaskOutput:
    """How often the client was called, as far as it remembers, and what else it remembered."""
    calls = inputs.remembered.get("own.calls", torch.zeros(1)) + 1
    left = torch.tensor([float(len(inputs.remembered))])
    own = {"own.calls": calls, f"own.round-{inputs.round}": torch.zeros(25)}
    return TaskOutput(tensors={"calls": calls.clone(), "remembered": left, **own})


def own(recipient: Recipient) -> GoesTo:
    """What begins with "own." goes to it, the rest to the server."""
    return lambda client, name: recipient if name.startswith("own.") else "server"


def federation(store: UpdateStore | None = None) -> Clients:
    members = [client(k) for k in IDS]
    shards = [torch.arange(4 * k, 4 * k + 4).numpy() for k in IDS]
    return Clients(members, shards, PROBLEM, InProcess(TRAIN), store or NoStore(), Events())


def called(updates: list[Update]) -> Mapping[int, float]:
    return {u.client.id: u.tensors["calls"].item() for u in updates}


def stores(root: Path, run: str = "run") -> Store:
    return Store(root / ".store", root / run / "updates", TRAIN)


def rounds(clients: Clients, *, first: int = 1, last: int = 3) -> list[Update]:
    """Client 1 is absent in round 2."""
    for clients.round in range(first, last + 1):
        only = [0, 2] if clients.round == 2 else None
        updates = clients.map(counts, only=only, remember=True, goes_to=own("client"))
        clients.end_round()
    return updates


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_client_remembers_what_its_own_last_task_returned(tmp_path: Path, on_disk: bool) -> None:
    updates = rounds(federation(stores(tmp_path) if on_disk else None))
    assert called(updates) == {0: 3, 1: 2, 2: 3}
    # All that the last one returned, and nothing of those before.
    assert [u.tensors["remembered"].item() for u in updates] == [4, 4, 4]


def test_who_is_not_to_remember_finds_nothing() -> None:
    clients = federation()
    for _ in range(2):
        updates = clients.map(counts)
    assert called(updates) == dict.fromkeys(IDS, 1)
    assert clients.remembered == {}


def test_another_map_neither_adds_to_a_memory_nor_clears_it() -> None:
    clients = federation()
    clients.map(counts, remember=True)
    clients.map(counts)
    assert called(clients.map(counts)) == dict.fromkeys(IDS, 2)


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_private_is_not_seen_and_not_counted(tmp_path: Path, on_disk: bool) -> None:
    clients = federation(stores(tmp_path) if on_disk else None)
    for update in clients.map(counts, remember=True, goes_to=own("client")):
        assert set(update.tensors) == {"calls", "remembered"}
        assert set(dict(update.tensors.items())) == {"calls", "remembered"}
        assert len(update.tensors) == 2
        assert "own.calls" not in update.tensors
        with pytest.raises(KeyError):
            update.tensors["own.calls"]
    assert clients.bytes_up == dict.fromkeys(IDS, 8)
    assert clients.bytes_for_test == dict.fromkeys(IDS, 0)


def test_what_only_the_test_needs_is_seen_and_counted_apart() -> None:
    clients = federation()
    for update in clients.map(counts, goes_to=own("test")):
        assert update.tensors["own.calls"].item() == 1
    assert clients.bytes_up == dict.fromkeys(IDS, 8)
    assert clients.bytes_for_test == dict.fromkeys(IDS, 4 + 100)


def test_a_run_that_goes_on_recalls_what_its_clients_remembered(tmp_path: Path) -> None:
    expected = rounds(federation(stores(tmp_path, "whole")))
    before = federation(stores(tmp_path))
    rounds(before, last=2)
    after = federation(stores(tmp_path))
    after.recall(before.remembered)
    assert called(rounds(after, first=3)) == called(expected)


@pytest.mark.parametrize("harm", ["gone", "cut", "of another run"])
def test_a_memory_that_is_gone_or_damaged_is_refused_by_name(tmp_path: Path, harm: str) -> None:
    before = federation(stores(tmp_path))
    rounds(before, last=2)
    if harm == "of another run":
        after = federation(stores(tmp_path, "another"))
    else:
        after = federation(stores(tmp_path))
        (file,) = (tmp_path / "run" / "updates").glob(f"{before.remembered[2]}.safetensors")
        if harm == "gone":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-3])
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    with pytest.raises(
        UserError, match=r"the stored state of client [02] is missing or damaged: .*round-"
    ):
        after.recall(before.remembered)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == files


def test_a_memory_changes_what_a_later_task_is_known_by(tmp_path: Path) -> None:
    """Else a client would be given an upload made from another memory."""
    clients = federation(stores(tmp_path))
    clients.map(counts, remember=True)
    assert called(clients.map(counts, remember=True)) == dict.fromkeys(IDS, 2)
    again = clients.map(counts, only=[0])
    assert (called(again), again[0].reused) == ({0: 3.0}, False)


def test_what_a_method_changes_between_two_maps_of_one_task_makes_other_uploads(
    tmp_path: Path,
) -> None:
    """Else the second map of a round would be given the uploads of the first."""
    clients, said = federation(stores(tmp_path)), [1.0]

    def says(inputs: TaskInput) -> TaskOutput:
        return TaskOutput(tensors={"calls": torch.tensor(said)})

    assert called(clients.map(says)) == dict.fromkeys(IDS, 1)
    said[0] = 2.0
    assert called(clients.map(says)) == dict.fromkeys(IDS, 2)
    said[0] = 1.0
    assert all(update.reused for update in clients.map(says))


def test_an_outliers_upload_is_made_anew_and_stays_with_whom_it_is_none(tmp_path: Path) -> None:
    def says(inputs: TaskInput) -> TaskOutput:
        return TaskOutput(tensors={"calls": torch.tensor([60.0 if inputs.client.id == 2 else 0.1])})

    alone = federation(stores(tmp_path, "alone")).map(says, only=[2])
    with pytest.raises(ClientFailed, match="where half of the clients stay below"):
        federation(stores(tmp_path)).map(says)
    assert called(alone) == {2: 60}
    (again,) = federation(stores(tmp_path, "later")).map(says, only=[2])
    assert not again.reused


@pytest.mark.parametrize(
    ("spans", "total"),
    [([], 0), ([(1, 2), (4, 6)], 3), ([(0, 5), (1, 2), (4, 6)], 6), ([(3, 4), (0, 3)], 4)],
)
def test_time_that_spans_share_counts_once(spans: list[tuple[float, float]], total: float) -> None:
    assert covered(spans) == total
