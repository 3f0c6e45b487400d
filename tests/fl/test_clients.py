"""What a map over clients sends, counts, keeps and survives; the executor is a fake one."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch

from fl.client_map import OnFailure
from fl.clients import Clients, Relayed
from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import Tensors, Upload, pack, unpack
from fl.executor import InProcess
from fl.federation import Executor, Job, RunSpec, TaskInput, TaskOutput, Update
from fl.methods.moon import LocalMoon
from fl.training.classifier import plain
from tests.fl.toy import CLASSIFIER, GENERATOR, PROBLEM, Told, client, into, named, same_bits, split

IDS = range(4)
Outcomes = Generator[tuple[Job, Upload | ClientFailed], None, None]
Answer = Callable[[Job], Tensors]


def own_id(job: Job) -> Tensors:
    return {"id": torch.tensor([job.client.id])}


def never_run(inputs: TaskInput) -> TaskOutput:
    raise AssertionError("the fake executor answers by itself")


class FakeExecutor:
    """Answers every job without running its task, in an order of its own."""

    def __init__(self, answer: Answer = own_id, order: Callable[[Job], int] | None = None) -> None:
        self.answer = answer
        self.order = order or (lambda job: job.client.id)
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job], events: Events) -> Outcomes:
        self.jobs += jobs
        for job in sorted(jobs, key=self.order):
            stats = {"train_loss": float(job.client.id)}
            note = {"seconds": 0.5, "span": (0.0, 0.5), "stats": stats}
            yield job, Upload(pack(self.answer(job), note))


class MemoryStore:
    """Knows an update by its client and what the client was sent."""

    def __init__(self) -> None:
        self.kept: dict[str, Upload] = {}

    def keys(self, jobs: Mapping[int, Job]) -> dict[int, str]:
        return {k: f"{k} {job.broadcast!r} {job.payload!r}" for k, job in jobs.items()}

    def get(self, key: str, client: int) -> Upload | None:
        assert key.split()[0] == str(client)
        return self.kept.get(key)

    def put(self, key: str, client: int, packed: Upload) -> None:
        assert key.split()[0] == str(client)
        self.kept[key] = packed

    def file(self, key: str) -> None:
        return None

    def locked(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
        return nullcontext(list(keys))


def federation(
    executor: Executor,
    store: MemoryStore | None = None,
    heard: list[Told] | None = None,
    on_failure: OnFailure = "stop",
) -> Clients:
    return Clients(
        [client(k) if k < 2 else client(k, GENERATOR) for k in IDS],
        [np.array([k, k + 1]) for k in IDS],
        PROBLEM,
        executor,
        store or MemoryStore(),
        Events(*([into(heard)] if heard is not None else [])),
        on_failure=on_failure,
    )


@pytest.mark.parametrize("direction", [1, -1])
def test_updates_come_by_client_id_in_whatever_order_they_finish(direction: int) -> None:
    executor = FakeExecutor(order=lambda job: direction * job.client.id)
    updates = federation(executor).map(never_run)
    assert [u.client.id for u in updates] == list(IDS)
    assert [u.tensors["id"].item() for u in updates] == list(IDS)
    assert [u.stats["train_loss"] for u in updates] == list(IDS)
    assert [(u.seconds, u.reused) for u in updates] == [(0.5, False)] * 4


def test_a_job_carries_the_clients_own_shard() -> None:
    executor = FakeExecutor()
    federation(executor).map(never_run)
    for job in executor.jobs:
        assert job.indices.tolist() == [job.client.id, job.client.id + 1]
        assert job.task is never_run
        assert job.run_spec == PROBLEM
        assert job.broadcast is None
        assert job.payload is None


def test_only_the_chosen_clients_take_part() -> None:
    executor = FakeExecutor()
    clients = federation(executor)
    updates = clients.map(never_run, only=(k for k in (3, 1, 3)), broadcast={"x": torch.ones(1)})
    assert [u.client.id for u in updates] == [1, 3]
    assert sorted(job.client.id for job in executor.jobs) == [1, 3]
    assert clients.bytes_down == {0: 0, 1: 4, 2: 0, 3: 4}
    assert [n > 0 for n in clients.bytes_up.values()] == [False, True, False, True]
    assert clients.map(never_run, only=[]) == []


def test_a_stranger_among_the_chosen_or_those_with_a_payload_is_refused() -> None:
    clients, sent = federation(FakeExecutor()), {"x": torch.ones(1)}
    with pytest.raises(ValueError, match=r"\[4, 9\]"):
        clients.map(never_run, only=[1, 4, 9])
    with pytest.raises(ValueError, match=r"\[2\]"):
        clients.map(never_run, only=[0, 1], payloads={1: sent, 2: sent})


def test_an_executor_that_loses_a_client_is_caught() -> None:
    class Forgetful(FakeExecutor):
        def run(self, jobs: Sequence[Job], events: Events) -> Outcomes:
            return super().run(jobs[1:], events)

    with pytest.raises(AssertionError, match=r"lost clients \[0\]"):
        federation(Forgetful()).map(never_run)


def test_broadcast_reaches_all_and_a_payload_its_client() -> None:
    executor = FakeExecutor()
    federation(executor).map(
        never_run,
        broadcast={"weights": torch.ones(3)},
        payloads={2: {"own": torch.tensor([2])}, 3: {}},
    )
    for job in executor.jobs:
        assert job.broadcast is not None
        assert torch.equal(unpack(job.broadcast)[0]["weights"], torch.ones(3))
        if job.client.id == 2:
            assert job.payload is not None
            assert unpack(job.payload)[0]["own"].item() == 2
        else:
            assert job.payload is None


def test_the_ledger_adds_up_over_maps() -> None:
    clients = federation(FakeExecutor(lambda job: {"x": torch.zeros(job.client.id + 1)}))
    assert clients.bytes_up == clients.bytes_down == dict.fromkeys(IDS, 0)
    broadcast, payload = {"w": torch.zeros(10)}, {"p": torch.zeros(2, dtype=torch.int64)}
    clients.map(never_run, broadcast=broadcast, payloads={1: payload})
    assert clients.bytes_up == {0: 4, 1: 8, 2: 12, 3: 16}
    assert clients.bytes_down == {0: 40, 1: 56, 2: 40, 3: 40}
    clients.map(never_run, only=[1], broadcast=broadcast)
    assert clients.bytes_up == {0: 4, 1: 16, 2: 12, 3: 16}
    assert clients.bytes_down == {0: 40, 1: 96, 2: 40, 3: 40}


def test_what_the_store_keeps_is_not_asked_for_again_but_counted_again() -> None:
    store, executor = MemoryStore(), FakeExecutor()
    first = federation(executor, store)
    first.map(never_run, only=[0, 1], broadcast={"w": torch.zeros(1)})
    assert len(executor.jobs) == len(store.kept) == 2

    executor.jobs = []
    again = federation(executor, store)
    updates = again.map(never_run, broadcast={"w": torch.zeros(1)})
    assert sorted(job.client.id for job in executor.jobs) == [2, 3]
    assert [u.reused for u in updates] == [True, True, False, False]
    assert [u.tensors["id"].item() for u in updates] == list(IDS)
    assert again.bytes_up == dict.fromkeys(IDS, 8)
    assert again.bytes_down == dict.fromkeys(IDS, 4)


def test_every_received_update_is_told() -> None:
    store = MemoryStore()
    federation(FakeExecutor(), store).map(never_run, only=[0])
    heard: list[Told] = []
    clients = federation(FakeExecutor(), store, heard)
    clients.map(never_run, only=[0, 2])
    ends = named(heard, "client_end")
    assert [(e["client"], e["role"], e["model"], e["reused"]) for e in ends] == [
        (0, "classifier", "cnn", True),
        (2, "generator", "cvae-small", False),
    ]
    for event in ends:
        assert event["num_samples"] == 9
        assert event["seconds_training"] == 0.5
        assert event["bytes_up"] == 8
        assert event["train_loss"] == event["client"]
    assert [e["status"] for e in named(heard, "phase") if e["phase"] == "local"] == ["start", "end"]


def test_each_update_is_handed_over_as_it_comes_reused_ones_too() -> None:
    store = MemoryStore()
    federation(FakeExecutor(), store).map(never_run, only=[3])
    executor = FakeExecutor(order=lambda job: -job.client.id)
    came: list[tuple[int, bool, int]] = []

    def each(update: Update) -> None:
        came.append((update.client.id, update.reused, int(update.tensors["id"])))

    clients = federation(executor, store)
    clients.map(never_run, each=each)
    assert came == [(3, True, 3), (2, False, 2), (1, False, 1), (0, False, 0)]
    with pytest.raises(ZeroDivisionError):
        federation(executor, store).map(never_run, each=lambda update: 1 // 0)


def test_updates_received_before_a_failure_are_kept() -> None:
    class Failing(FakeExecutor):
        def run(self, jobs: Sequence[Job], events: Events) -> Outcomes:
            yield from super().run(jobs[:2], events)
            failed = jobs[2].client
            yield jobs[2], ClientFailed(failed.id, failed.model, "RuntimeError: out of memory")
            raise AssertionError("went on after a failure that ends the map")

    store = MemoryStore()
    with pytest.raises(ClientFailed, match=r"^client 2 \(cvae-small\) failed: .* out of memory$"):
        federation(Failing(), store).map(never_run)
    assert len(store.kept) == 2


def fails_for_two(inputs: TaskInput) -> TaskOutput:
    if inputs.client.id == 2:
        raise ZeroDivisionError("no samples")
    return TaskOutput(tensors={})


def test_a_failing_client_ends_the_map_with_its_name() -> None:
    clients = federation(InProcess(split(2, 2, 2)))
    said = r"^client 2 \(cvae-small\) failed: ZeroDivisionError"
    with pytest.raises(ClientFailed, match=said) as caught:
        clients.map(fails_for_two)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)  # with the client's own traceback


def test_a_failing_client_can_be_dropped_by_name_and_the_others_stay() -> None:
    heard: list[Told] = []
    store = MemoryStore()
    executor = InProcess(split(2, 2, 2))
    clients = federation(executor, store, heard, on_failure="drop")
    updates = clients.map(fails_for_two)
    everyone = [c.id for c in clients.members]
    assert [u.client.id for u in updates] == [k for k in everyone if k != 2]
    assert clients.dropped == {2: "ZeroDivisionError: no samples"}
    (dropped,) = named(heard, "client_dropped")
    assert (dropped["client"], dropped["reason"]) == (2, "ZeroDivisionError: no samples")
    assert len(store.kept) == len(everyone) - 1


def test_a_role_is_never_dropped_whole() -> None:
    clients = federation(InProcess(split(2, 2, 2)), on_failure="drop")
    assert [u.client.id for u in clients.map(fails_for_two, only=[0, 2])] == [0]
    clients.dropped[3] = "gone"  # the last generator client, which that map did not choose
    del clients.dropped[2]
    with pytest.raises(ClientFailed, match=r"^client 2 .*no samples; no generator client is left$"):
        clients.map(fails_for_two, only=[0, 2])


def whatever(update: Update, run_spec: RunSpec) -> None:
    """Any upload will do."""


def test_each_client_trains_by_the_task_of_its_own_record() -> None:
    executor = FakeExecutor()
    federation(executor).train(only=[1, 2], check=whatever)
    trainings = {job.client.id: job.client.training for job in executor.jobs}
    assert trainings == {1: CLASSIFIER, 2: GENERATOR}
    assert all(job.task is job.client.training.task for job in executor.jobs)


def test_what_clients_were_sent_before_reaches_them_again_and_counts_no_more() -> None:
    executor = FakeExecutor()
    clients = federation(executor)
    earlier, now = {"model": torch.ones(100)}, {"goals": torch.zeros(2)}
    clients.map(never_run, only=[0], broadcast=now, known=earlier)
    (job,) = executor.jobs
    assert job.broadcast is not None
    assert same_bits(unpack(job.broadcast)[0], {**earlier, **now})
    assert clients.bytes_down[0] == 8


def test_who_was_dropped_is_left_out_of_later_maps_and_sent_nothing() -> None:
    executor = FakeExecutor()
    clients = federation(executor)
    clients.dropped[1] = "out of memory"
    updates = clients.map(never_run, broadcast={"w": torch.zeros(1)})
    assert [u.client.id for u in updates] == [0, 2, 3]
    assert clients.bytes_down[1] == 0


def test_jobs_and_what_is_told_of_them_carry_the_round() -> None:
    heard: list[Told] = []
    executor = FakeExecutor()
    clients = federation(executor, heard=heard)
    clients.round = 3
    clients.map(never_run, only=[0])
    assert [job.round for job in executor.jobs] == [3]
    assert [event["round"] for event in named(heard, "client_end")] == [3]


def test_time_at_work_is_that_of_who_trained_and_not_of_who_was_reused() -> None:
    store = MemoryStore()
    federation(FakeExecutor(), store).map(never_run, only=[0])
    clients = federation(FakeExecutor(), store)
    clients.map(never_run, only=[0])
    assert clients.busy_seconds == 0
    clients.map(never_run, only=[1, 2])  # side by side, half a second each
    assert clients.busy_seconds == 0.5
    clients.map(never_run, only=[3])
    assert clients.busy_seconds == 1


def test_what_another_run_is_training_is_waited_for_and_not_trained_again() -> None:
    class Contended(MemoryStore):
        """Grants one client a time; the other run has done client 2 when its lock is free."""

        def locked(self, keys: Mapping[int, str]) -> AbstractContextManager[list[int]]:
            first = min(keys)
            if first == 2:
                note = {"seconds": 0.5, "span": (0.0, 0.5)}
                self.kept[keys[2]] = Upload(pack({"id": torch.tensor([22])}, note))
            return nullcontext([first])

    executor = FakeExecutor()
    updates = federation(executor, Contended()).map(never_run)
    assert [job.client.id for job in executor.jobs] == [0, 1, 3]
    assert [u.tensors["id"].item() for u in updates] == [0, 1, 22, 3]
    assert [u.reused for u in updates] == [False, False, True, False]


def test_what_is_for_peers_is_counted_by_itself_and_handed_on_uncounted() -> None:
    """Client 0 sends to client 1; the server sends something to client 2."""
    executor, heard = FakeExecutor(), []  # type: ignore[var-annotated]
    clients = federation(executor, heard=heard)
    (update,) = clients.map(never_run, only=[0], goes_to="peers")
    assert (clients.bytes_peer[0], clients.bytes_up[0]) == (8, 0)
    payloads = {1: Relayed(update.tensors), 2: {"more": torch.zeros(3)}}
    clients.map(never_run, only=[1, 2], payloads=payloads)
    assert clients.bytes_down == {0: 0, 1: 0, 2: 12, 3: 0}
    assert clients.bytes_up == {0: 0, 1: 8, 2: 8, 3: 0}
    assert clients.bytes_peer == {0: 8, 1: 0, 2: 0, 3: 0}
    received = {job.client.id: unpack(job.payload)[0] for job in executor.jobs if job.payload}
    assert same_bits(received[1], {"id": torch.tensor([0])})
    assert [job.of_this_run for job in executor.jobs] == [False, True, False]
    told = {(e["client"], e["bytes_up"], e["bytes_peer"]) for e in named(heard, "client_end")}
    assert told == {(0, 0, 8), (1, 8, 0), (2, 8, 0)}


def test_the_first_round_is_trained_by_its_own_record_and_sends_no_weights() -> None:
    executor = FakeExecutor()
    clients = federation(executor)
    moon, weights = LocalMoon(model="cnn", width=0.2), {"w": torch.ones(1)}
    assert clients.to_send(weights) == {}
    clients.train(moon, only=[0], check=whatever, remember=True)
    # It goes on from its own model.
    clients.train(moon, only=[0], known=weights, check=whatever, remember=True)
    clients.round = 2
    assert clients.to_send(weights) is weights
    clients.train(moon, only=[1], check=whatever)
    assert [job.client.training for job in executor.jobs] == [plain(moon), moon, moon]
    assert [job.of_this_run for job in executor.jobs] == [False, True, False]
