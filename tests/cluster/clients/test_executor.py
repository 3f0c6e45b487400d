"""Clients as Ray actors: the same answer as in this process, and failures that carry a name."""

import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

from cluster.clients.actors import LARGE, Inbox, Sender, send
from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles
from fl.data.datasets import Split
from fl.errors import ClientFailed
from fl.events import PERIOD_S, ClientProgress, Event, Events, report
from fl.exchange import Upload, pack, unpack
from fl.executor import InProcess
from fl.federation import Job, Memory, Request, RunSpec, TaskInput, TaskOutput, Training
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.sizes import CohortSizes
from fl.training.task import train_by_recipe
from tests.cluster.living import alive
from tests.cluster.outcomes import uploads
from tests.fl.toy import Told, client, into, job_of, named, split
from tests.waiting import wait_until

RNG = np.random.default_rng(0)
TRAIN = Split(
    RNG.integers(0, 256, (60, 1, 28, 28), dtype=np.uint8), RNG.integers(0, 10, 60).astype(np.int64)
)
CLASSIFIER = ClassifierConfig(model="cnn", width=0.3, epochs=2)
GENERATOR = GeneratorConfig(width=0.1, latent=4, epochs=2)


SPEC = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)


def job(k: int, training: Training = CLASSIFIER, task=None, cpus: float = 1) -> Job:  # type: ignore[no-untyped-def]
    own, rows = client(k, training, cpus=cpus), range(15 * k, 15 * k + 15)
    return job_of(task or training.task, own, rows, run_spec=SPEC)


JOBS = [job(0), job(1), job(2, GENERATOR, cpus=0.5), job(3, GENERATOR, cpus=0.5)]


def whoami(inputs: TaskInput) -> TaskOutput:
    import ray

    assigned = ray.get_runtime_context().get_assigned_resources()
    figures = {"pid": float(os.getpid()), "cpus": assigned["CPU"]}
    figures["cuda"] = float(torch.cuda.is_available())
    return TaskOutput(tensors={"none": torch.zeros(0)}, stats=figures)


def fails_on_two(inputs: TaskInput) -> TaskOutput:
    if inputs.client.id == 2:
        raise ArithmeticError("the loss is NaN")
    return TaskOutput(tensors={"x": torch.ones(1)})


def run(bundles: Bundles, jobs: list[Job], max_actors: int | None = None) -> dict[int, bytes]:
    executor = RayExecutor(TRAIN, bundles, max_actors=max_actors)
    return uploads(executor, jobs)


def test_same_uploads_in_process_one_by_one_and_at_once(bundles: Bundles) -> None:
    here = uploads(InProcess(TRAIN), JOBS)
    at_once, one_by_one = run(bundles, JOBS), run(bundles, JOBS[1:3], max_actors=1)
    assert at_once.keys() == here.keys()
    for there in (at_once, one_by_one):
        for k, packed in there.items():
            ours, theirs = unpack(here[k])[0], unpack(packed)[0]
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_progress_is_reported_while_a_client_trains(bundles: Bundles, tmp_path: Path) -> None:
    def reports(inputs: TaskInput) -> TaskOutput:
        for done, loss in ((3, 0.5), (4, 0.4)):
            time.sleep(PERIOD_S)  # what comes sooner is sent with the next one
            report(inputs.client.id, done, 20, lambda loss=loss: loss)
            report(77, done, 20, lambda: 0.5)
            while not (tmp_path / f"{done}").exists():
                time.sleep(0.05)
        return TaskOutput(tensors={"x": torch.ones(1)})

    def heard(event: Event) -> None:
        if isinstance(event, ClientProgress):
            (tmp_path / f"{event.done}").touch()

    seen: list[Told] = []
    uploads(RayExecutor(TRAIN, bundles), [job(1, task=reports)], Events(into(seen), heard))
    progress = named(seen, "client_progress")
    assert [(e["client"], e["done"], e["of"], e["loss"]) for e in progress] == [
        (1, 3, 20, 0.5),
        (1, 4, 20, 0.4),
    ]


def test_clients_have_processes_with_what_they_asked_for_and_no_more_than_there_is_room(
    bundles: Bundles,
) -> None:
    seen: list[Told] = []
    jobs = [job(0, task=whoami), job(1, task=whoami), job(2, task=whoami, cpus=0.5)]
    at_once, stats = [], {}
    executor = RayExecutor(TRAIN, bundles)
    for finished, (done, packed) in enumerate(executor.run(jobs, Events(into(seen))), start=1):
        at_once.append(len(seen) - finished)  # who follows is seated before the result is told
        assert not isinstance(packed, ClientFailed)
        stats[done.client.id] = unpack(bytes(packed))[1]["stats"]
    assert max(at_once) == 2
    assert len({s["pid"] for s in stats.values()} | {os.getpid()}) == 4
    assert [stats[k]["cpus"] for k in (0, 1, 2)] == [1, 1, 0.5]
    assert not any(s["cuda"] for s in stats.values())


def test_a_failing_client_is_named_with_its_reason(bundles: Bundles) -> None:
    jobs = [job(k, task=fails_on_two) for k in range(4)]
    with pytest.raises(ClientFailed, match=r"client 2 \(cnn\) failed: ArithmeticError: the loss"):
        run(bundles, jobs)


def never_ends(inputs: TaskInput) -> TaskOutput:
    with Path(os.environ["PIDS"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if inputs.client.id == 1:
        time.sleep(1000)
    if inputs.client.id == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    return TaskOutput(tensors={"x": torch.ones(1)})


def test_clients_that_hang_or_are_stopped_are_ended_tried_again_and_named(
    bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(jobs: Sequence[Job], given: float | None, rates: Mapping[str, float]) -> float | None:
        """None for client 0, whose process may take long to start."""
        return given if jobs[0].client.id else None

    monkeypatch.setattr("cluster.clients.executor.time_limit", limit)
    file = tmp_path / "pids"

    def task(inputs: TaskInput) -> TaskOutput:
        os.environ["PIDS"] = str(file)
        return never_ends(inputs)

    heard: list[Told] = []
    executor = RayExecutor(TRAIN, bundles, timeout=3, attempts=2)
    jobs = [job(0, task=task), job(1, task=task), job(2, task=task)]
    outcome = {done.client.id: result for done, result in executor.run(jobs, Events(into(heard)))}
    executor.close()
    assert not isinstance(outcome[0], ClientFailed)
    for k in (1, 2):
        failed = outcome[k]
        assert isinstance(failed, ClientFailed)
        assert "had not finished after 3 s (attempt 2 of 2)" in failed.reason
    assert [e["client"] for e in named(heard, "client_failed")].count(1) == 2
    pids = [int(pid) for pid in file.read_text().split()]
    wait_until(lambda: not any(alive(pid) for pid in pids))


def light(client: int, task=train_by_recipe) -> Job:  # type: ignore[no-untyped-def]
    own = job(client, GENERATOR, task)
    request = Request(cpus=1, gpus=0, shared=True)
    return replace(own, client=replace(own.client, request=request), indices=np.arange(5 + client))


def in_fours() -> CohortSizes:
    sizes = CohortSizes()
    sizes.next = lambda job: 4
    return sizes


def cohorts_as_alone(jobs: list[Job], results: dict[int, bytes]) -> list[int]:
    """The sizes of the clients' cohorts; each result is that of its client alone, to the bit."""
    cohorts = []
    for own in jobs:
        ((_, alone),) = InProcess(TRAIN).run([own], Events())
        theirs, note = unpack(results[own.client.id])
        assert all(torch.equal(t, theirs[n]) for n, t in unpack(bytes(alone))[0].items())
        cohorts.append(note["cohort"])
    return cohorts


def test_the_pool_trains_cohorts_to_the_same_bits_as_each_client_alone(bundles: Bundles) -> None:
    jobs = [light(k) for k in range(10)]
    seen: list[Told] = []
    executor = RayExecutor(TRAIN, bundles, sizes=in_fours())
    results = uploads(executor, jobs, Events(into(seen)))
    assert sorted(e["client"] for e in seen if e["event"] == "client_start") == [*range(10)]
    assert len(results) == 10
    # The last are cut to end together.
    assert sorted(cohorts_as_alone(jobs, results)) == [1, *[2] * 2, *[3] * 3, *[4] * 4]


def test_kept_processes_serve_the_next_map_and_end_with_the_executor(bundles: Bundles) -> None:
    def pids(jobs: list[Job]) -> set[float]:
        return {unpack(p)[1]["stats"]["pid"] for p in uploads(executor, jobs).values()}

    executor = RayExecutor(TRAIN, bundles, reuse_processes=True)
    four = [job(k, task=whoami) for k in range(4)]
    first = pids(four)
    assert len(first) == 2  # as many as there are cores
    assert pids(four) == first
    (half,) = pids([job(0, task=whoami, cpus=0.5)])
    assert half not in first
    assert len(pids(four) & first) == 1  # one had to make room
    executor.close()
    assert executor.actors.processes == []
    assert not pids(four) & first
    executor.close()


# What goes to clients' processes and comes back leaves nothing in the driver's memory. Their
# progress reaches the driver, and nothing depends on it.


FEW = split(4, 4, 4)
FLOATS = 4 * LARGE // 4


def filled(value: float, floats: int = FLOATS) -> bytes:
    return pack({"x": torch.full((floats,), value)}, {})


def heavy(k: int, memory: bytes, broadcast: bytes, payload: bytes | None = None) -> Job:
    remembered = Memory(f"{k}", lambda: Upload(memory))
    sent = {"broadcast": broadcast, "payload": payload}
    return job_of(adds, client(k), range(2), memory=remembered, **sent)


def adds(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"x": inputs.remembered["x"] + inputs.broadcast["x"]})


def shared_bytes() -> int:
    """Of this process's memory, what it shares with others that are not files on a disk."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssShmem"))


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_the_drivers_memory_does_not_grow_with_messages_memories_and_uploads(
    bundles: Bundles,
) -> None:
    count, before, most = 12, shared_bytes(), 0
    broadcast = filled(100)
    jobs = [heavy(k, filled(k), broadcast) for k in range(count)]
    executor = RayExecutor(FEW, bundles, reuse_processes=True)
    for done, packed in executor.run(jobs, Events()):
        assert isinstance(packed, Upload)
        found = unpack(bytes(packed))[0]["x"]
        assert found.shape == (FLOATS,)
        assert (found == 100 + done.client.id).all()
        most = max(most, shared_bytes() - before)
        count -= 1
    executor.close()
    assert count == 0
    assert most < 2 * LARGE  # half of a single message


def test_small_messages_travel_with_their_job_large_ones_beside_it(bundles: Bundles) -> None:
    small, large = filled(1, floats=3), filled(2)
    sent = Sender().send(heavy(0, large, small, payload=small))
    assert sent.messages.keys() == {"remembered"}
    assert (sent.job.broadcast, sent.job.payload, sent.job.remembered) == (small, small, None)
    assert sent.received() == replace(sent.job, remembered=large)
    assert sent.job.memory is None


def test_a_broadcast_to_many_clients_is_put_once_and_another_one_anew(bundles: Bundles) -> None:
    sender, first, second = Sender(), filled(1), filled(2)
    broadcasts = [first] * 3 + [second]
    sent = [sender.send(heavy(k, b"", each)) for k, each in enumerate(broadcasts)]
    references = [each.messages["broadcast"] for each in sent]
    assert references[0] is references[1] is references[2]
    assert references[3] is not references[0]
    assert [each.received().broadcast for each in sent] == broadcasts


@pytest.fixture
def inbox(bundles: Bundles) -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


def reported(client: int, done: int = 3) -> ClientProgress:
    return ClientProgress(client=client, unit="epoch", done=done, of=20, loss=0.4125)


def test_the_latest_report_of_each_client_at_work_arrives(inbox: Inbox) -> None:
    assert not list(inbox.read({1}))
    send(inbox.mailbox, [reported(1), reported(2)])
    send(inbox.mailbox, [reported(2, done=4), reported(5)])
    found: list[ClientProgress] = []
    while not found or found[-1].done < 4:
        found += inbox.read({2, 3})
        time.sleep(0.05)
    assert {each.client for each in found} == {2}
    assert found[-1] == reported(2, done=4)


def test_neither_end_waits_or_fails_without_the_actor(inbox: Inbox) -> None:
    ray.kill(inbox.mailbox)
    begin = time.monotonic()
    while time.monotonic() < begin + 0.5:
        send(inbox.mailbox, [reported(1)])
        assert not list(inbox.read({1}))
