"""Which client processes are started, kept and ended, and what one does in a call.

On a Ray without processes; tests/cluster/clients/test_executor.py has real ones.
"""

from types import SimpleNamespace

import pytest

from cluster.clients import actors
from cluster.clients.actors import Actors, ClientActor, Process, Sent
from cluster.hardware.bundles import Bundles
from cluster.scheduling.capacity import Bundle, Slot
from fl.exchange import Upload, unpack
from fl.federation import Job, Request, TaskInput, TaskOutput
from tests.cluster.fake_ray import FakeRay
from tests.cluster.placing import ask, bundle
from tests.fl.toy import client, job_of, split

TRAIN = split(3, 3, 3)
CORES, GPU = Slot(bundle="0", gpu=None), Slot(bundle="0", gpu=0)
ELSEWHERE = Slot(bundle="1", gpu=None)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay(lambda *_: object(), CPU=1.0)
    monkeypatch.setattr(actors, "ray", made)
    return made


def processes(*bundles: Bundle) -> Actors:
    return Actors(TRAIN, Bundles(group=None, all=bundles, nodes={}))


def idle(those: Actors, slot: Slot, request: Request, count: int = 1) -> list[Process]:
    """So many processes in that slot whose clients are done."""
    hired = [those.hire(slot, request) for _ in range(count)]
    for process in hired:
        process.idle = True
    return hired


def test_an_idle_process_of_the_same_slot_and_request_is_hired_again(ray: FakeRay) -> None:
    those = processes(bundle("0", cpus=4))
    (first,) = idle(those, CORES, ask(1))
    assert those.hire(CORES, ask(1)) is first
    assert those.hire(CORES, ask(1)) is not first  # it is at work now
    first.idle = True
    other = those.hire(CORES, ask(2))
    assert other is not first
    assert len(ray.actors) == len(those.processes) == 3
    assert not ray.ended


def test_idle_processes_end_when_their_capacity_is_needed_and_no_more_of_them(ray: FakeRay) -> None:
    those = processes(bundle("0", cpus=4), bundle("1", cpus=4))
    elsewhere = idle(those, ELSEWHERE, ask(1))
    at_work = those.hire(CORES, ask(1))
    first, second, third = idle(those, CORES, ask(1), 3)
    two = those.hire(CORES, ask(2))
    assert ray.ended == [first.actor, second.actor]
    assert those.processes == [*elsewhere, at_work, third, two]


def test_on_a_gpu_the_share_that_an_idle_process_holds_is_freed(ray: FakeRay) -> None:
    those = processes(bundle("0", cpus=8, gpus=2))
    first, second = idle(those, GPU, ask(1, 0.4), 2)
    those.hire(GPU, ask(1, 0.2))
    assert not ray.ended
    those.hire(GPU, ask(1, 0.3))
    assert ray.ended == [first.actor]
    assert second in those.processes


def test_a_process_asks_for_what_its_client_may_use(ray: FakeRay) -> None:
    those = processes(bundle("0", cpus=8, gpus=1))
    those.hire(GPU, ask(2, 0.25, 50))
    those.hire(CORES, ask(1, 0.25))
    asked = [
        [actor.asked[name] for name in ("num_cpus", "num_gpus", "memory")] for actor in ray.actors
    ]
    assert asked == [[2, 0.25, 50], [1, 0, None]]  # without a GPU no share of one is asked for


def test_processes_of_a_lost_bundle_end_and_the_others_stay(ray: FakeRay) -> None:
    those = processes(bundle("0"), bundle("1"))
    there = [those.hire(CORES, ask(1)), *idle(those, CORES, ask(1))]
    other = those.hire(ELSEWHERE, ask(1))
    those.end_all(bundle="0")
    assert those.processes == [other]
    assert ray.ended == [process.actor for process in there]


def test_after_a_map_only_those_at_work_end_and_in_the_end_all(ray: FakeRay) -> None:
    those = processes(bundle("0", cpus=4))
    (kept,) = idle(those, CORES, ask(1))
    those.hire(CORES, ask(2))
    those.end_all(but_idle=True)
    assert those.processes == [kept]
    those.end_all()
    assert those.processes == []
    assert len(ray.ended) == 2


def test_models_are_sent_to_a_process_again_where_they_have_changed(ray: FakeRay) -> None:
    """A loss may refer to what the method changes from round to round."""
    told: list[object] = []
    ray.make = lambda *_: SimpleNamespace(learn=told.append, run=lambda *_: told.append("run"))
    those = processes(bundle("0", cpus=4))
    process = those.hire(CORES, ask(1))
    for those.models in (None, b"one", b"one", b"two"):
        those.submit(process, [], 1)
    assert told == ["run", b"one", "run", "run", b"two", "run"]


def adds_up(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"sum": inputs.shard.labels.sum()[None]})


def job(k: int) -> Job:
    return job_of(adds_up, client(k), range(k, k + 3))


@pytest.fixture
def actor(ray: FakeRay) -> ClientActor:
    return ClientActor()


def test_a_call_runs_its_clients_in_cohorts_and_answers_in_their_order(actor: ClientActor) -> None:
    jobs = [job(k) for k in (4, 0, 2, 1, 3)]
    results = actor.run([Sent(j, {}) for j in jobs], 2, TRAIN.images, TRAIN.labels)
    packed = [result.tobytes() for result in results]
    notes = [Upload(each).note for each in packed]
    assert [note.client for note in notes] == [4, 0, 2, 1, 3]
    for own, each in zip(jobs, packed, strict=True):
        assert unpack(each)[0]["sum"].item() == TRAIN.labels[own.indices].sum()
    spans = [note.span for note in notes]
    assert len(set(spans)) == 3
    assert spans[0] == spans[1] != spans[2] == spans[3]


def test_the_note_says_where_the_client_ran(
    actor: ClientActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that Slurm has for the node, of which several may share a host."""
    monkeypatch.setenv("SLURMD_NODENAME", "beta")
    (result,) = actor.run([Sent(job(0), {})], 1, TRAIN.images, TRAIN.labels)
    note = Upload(result.tobytes()).note
    assert (note.node, note.assigned) == ("beta", {"CPU": 1.0})


def test_what_a_larger_cohort_took_is_returned_and_no_more(
    actor: ClientActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[int] = []
    for size in (1, 4, 8, 2, 2, 4):
        monkeypatch.setattr(actors, "return_freed_memory", lambda size=size: returned.append(size))
        actor.run([], size, TRAIN.images, TRAIN.labels)
    assert returned == [2]
