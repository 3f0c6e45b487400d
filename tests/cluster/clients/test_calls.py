"""Who is called together, in which processes, and what follows a failure.

On a Ray without processes; tests/cluster/clients/test_executor.py and test_faults.py have real
ones.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ray.exceptions import RayActorError, RayTaskError

from cluster.clients import actors, executor
from cluster.clients.actors import ClientActor, Process, Sent
from cluster.clients.executor import RayExecutor
from cluster.clients.memory_cap import OverspentError
from cluster.hardware.bundles import Bundles
from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import ClientNote, Upload
from fl.executor import InProcess
from fl.federation import Job, Request, Task, TaskInput, TaskOutput
from fl.methods.fedgen import LocalFedGen
from fl.methods.fedper import LocalFedRep
from fl.training import sizes, slots
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from fl.training.recipe import Recipe
from fl.training.sizes import CohortSizes
from tests.cluster.fake_ray import FakeRay, Reference
from tests.cluster.placing import MEMORY, bundle
from tests.fl.toy import GENERATOR, Told, client, into, job_of, named, split
from tests.pretended_gpu import pretended_gpus

WAVES = Request(cpus=1, gpus=0.1, shared=True, in_waves=True)
LIGHT = Request(cpus=1, gpus=0, shared=True)
HEAVY = Request(cpus=1, gpus=0.4)
TRAIN = split(3, 3, 3)


class Worker:
    """A client's process, which trains nobody; also the mailbox."""

    fails: Callable[[Job], Exception | None] = staticmethod(lambda job: None)
    holds: Callable[[Sequence[Job]], bool] = staticmethod(lambda jobs: True)
    """Whether a cohort fits into memory."""
    tried: list[int]
    """Sizes of cohorts, of all processes."""

    def __init__(self, *_: Any) -> None:
        pass

    def learn(self, models: bytes | None) -> None:
        pass

    def take(self) -> list[Any]:
        return []

    def put(self, reports: Sequence[Any]) -> None:
        pass

    def run(self, sent: list[Sent], size: int, *columns: Any) -> Any:
        if error := next(filter(None, (self.fails(each.job) for each in sent)), None):
            return Reference(error=error)
        cohort = min(size, len(sent))
        for first in range(0, len(sent), size):
            self.tried.append(cohort)
            if not self.holds([each.job for each in sent[first : first + size]]):
                return Reference(error=RayTaskError("run", "", OverspentError("too much")))
        ids = (each.job.client.id for each in sent)
        notes = (ClientNote(client=id, seconds=1.0, cohort=cohort) for id in ids)
        return [np.frombuffer(note.pack({}), np.uint8) for note in notes]


class Standing(Bundles):
    """Nodes that do not go."""

    def lost(self) -> set[str]:
        return set()


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay(Worker)
    Worker.tried = []
    monkeypatch.setattr(actors, "ray", made)
    monkeypatch.setattr(executor, "ray", made)
    monkeypatch.setattr(executor, "await_gpus", lambda bundles: None)
    return made


class Calls:
    """The calls of a map: how many light clients each has, and who is at work then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.at_once: list[Counter[tuple[int | None, bool]]] = []
        """Processes by their GPU and whether they have a wave."""
        self.waves = 0
        """Clients in waves."""
        submit = actors.Actors.submit

        def watched(own: actors.Actors, process: Process, jobs: list[Job], size: int) -> Any:
            at_work = (p for p in own.processes if not p.idle)
            self.at_once.append(Counter((p.slot.gpu, p.request.in_waves) for p in at_work))
            self.waves += len(jobs) if process.request.in_waves else 0
            if process.request.shared:
                self.sizes.append(len(jobs))
            return submit(own, process, jobs, size)

        monkeypatch.setattr(actors.Actors, "submit", watched)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def jobs(count: int, request: Request, first: int = 0, task: Task | None = None) -> list[Job]:
    training = GeneratorConfig() if request.shared else ClassifierConfig()
    clients = (client(k, training) for k in range(first, first + count))
    asking = (replace(own, request=request) for own in clients)
    return [job_of(task or training.task, own, range(9)) for own in asking]


def ended(
    jobs: list[Job], *, gpus: int = 1, heard: list[Told] | None = None, **options: Any
) -> dict[int, Upload | ClientFailed]:
    """What became of each client, on 16 cores."""
    there = Standing(group=None, all=(bundle("0", cpus=16, gpus=gpus),), nodes={})
    events = Events() if heard is None else Events(into(heard))
    return {j.client.id: end for j, end in RayExecutor(TRAIN, there, **options).run(jobs, events)}


def of_size(size: int, *, known: bool = False) -> CohortSizes:
    made = CohortSizes()
    made.next = lambda job: size  # type: ignore[method-assign]
    made.knows = lambda job: known  # type: ignore[method-assign]
    return made


def test_a_gpu_has_one_process_for_waves_of_hundreds(calls: Calls, ray: FakeRay) -> None:
    found = ended(jobs(1000, WAVES), gpus=2)
    assert sorted(found) == [*range(1000)]
    assert calls.sizes == [250] * 4
    assert max(calls.at_once, key=len) == {(0, True): 1, (1, True): 1}
    assert all(count == 1 for at_work in calls.at_once for count in at_work.values())
    assert len(ray.actors) == 1 + 2  # the mailbox, and a process for each card


def test_heavy_clients_have_their_shares_beside_a_wave(calls: Calls) -> None:
    assert len(ended([*jobs(8, HEAVY), *jobs(592, WAVES, first=8)])) == 600
    assert calls.sizes == [198, 197, 197]
    assert {(0, True): 1, (0, False): 2} in calls.at_once


def test_a_gpus_process_trains_wave_after_wave_to_what_each_client_is_alone(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    waves: list[int] = []

    def counted(recipes: Sequence[Recipe], count: int) -> list[TaskOutput]:
        waves.append(len(recipes))
        return in_slots(recipes, count)

    in_slots = slots.train
    monkeypatch.setattr(slots, "train", counted)
    monkeypatch.setattr(slots, "suits", lambda device: device.type == "cuda")
    for module in (slots, sizes, executor):
        monkeypatch.setattr(module, "SLOTS", 3)
    ray.make = lambda *given: ClientActor(*given) if given else Worker()
    light = [
        replace(own, client=replace(own.client, training=GENERATOR), task=GENERATOR.task)
        for own in jobs(7, WAVES)
    ]
    with pretended_gpus():
        found = ended(light)
    assert waves == [3, 2, 2]
    for own in light:
        upload = found[own.client.id]
        assert isinstance(upload, Upload)
        assert (upload.note.device, upload.note.cohort) == ("cuda", 3 if own.client.id < 3 else 2)
        ((_, alone),) = InProcess(TRAIN).run([own], Events())
        assert isinstance(alone, Upload)
        torch.testing.assert_close(dict(upload), dict(alone))


def test_in_one_process_waves_follow_the_first_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "suits", lambda device: device.type == "cuda")
    for module in (slots, sizes):
        monkeypatch.setattr(module, "SLOTS", 9)
    training = replace(GENERATOR, epochs=1)
    light = [
        replace(own, client=replace(own.client, training=training), task=training.task)
        for own in jobs(21, replace(WAVES, in_waves=False))
    ]
    with pretended_gpus():
        found = [end.note.cohort for _, end in InProcess(TRAIN).run(light, Events())]  # type: ignore[union-attr]
    assert found == [8] * 8 + [9] * 9 + [4] * 4


def test_waves_go_on_with_the_size_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "holds", staticmethod(lambda jobs: len(jobs) <= 40))
    assert len(ended(jobs(2000, WAVES))) == 2000
    sizes = list(Worker.tried)
    assert [size for size in sizes if size > 40] == [250, 128, 64, 62]
    assert sizes.count(32) > 50


def test_one_client_of_many_samples_makes_no_small_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    def holds(jobs: Sequence[Job]) -> bool:
        return len(jobs) == 1 or all(job.client.id for job in jobs)

    monkeypatch.setattr(Worker, "holds", staticmethod(holds))
    found = ended(jobs(2000, WAVES))
    assert all(isinstance(end, Upload) for end in found.values())
    assert len(found) == 2000
    assert Worker.tried[-1] == 250
    assert len(Worker.tried) < 40


def another(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={})


def test_what_is_not_their_training_takes_no_wave(calls: Calls) -> None:
    assert len(ended(jobs(30, WAVES, task=another))) == 30
    assert {(0, False): 10} in calls.at_once


@pytest.mark.parametrize(
    ("training", "in_waves"), [(LocalFedGen(), 0), (LocalFedRep(head_epochs=2), 30)]
)
def test_a_record_that_was_measured_as_another_takes_no_wave(
    training: ClassifierConfig, in_waves: int, calls: Calls
) -> None:
    """FedGen's clients train in slots in the first round alone, by FedAvg's record."""
    given = [
        replace(own, client=replace(own.client, training=record), task=training.task)
        for record, first in ((training, 0), (training.first_round, 30))
        for own in jobs(30, WAVES, first=first)
    ]
    assert len(ended(given)) == 60
    assert calls.waves == 30 + in_waves


def test_a_process_is_given_several_small_cohorts_at_once(calls: Calls) -> None:
    rates = {"cvae-small": 1e-9}
    assert len(ended(jobs(160, LIGHT), sizes=of_size(2, known=True), rates=rates)) == 160
    assert calls.sizes[0] == 4
    assert calls.sizes[-1] < 4


@pytest.mark.parametrize(
    ("request_", "own"), [(WAVES, None), (LIGHT, of_size(4)), (LIGHT, of_size(2, known=True))]
)
def test_who_fails_in_company_is_named_alone(
    request_: Request, own: CohortSizes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(job: Job) -> Exception | None:
        return RayTaskError("run", "", ArithmeticError("NaN")) if job.client.id == 7 else None

    monkeypatch.setattr(Worker, "fails", staticmethod(fails))
    heard: list[Told] = []
    options: dict[str, Any] = {"sizes": own} if own else {}
    rates = {"cvae-small": 1e-9}
    found = ended(jobs(300, request_), heard=heard, attempts=2, rates=rates, **options)
    assert str(found.pop(7)) == (
        "client 7 (cvae-small) failed: ArithmeticError: NaN (attempt 2 of 2)"
    )
    assert len(found) == 299
    assert all(isinstance(end, Upload) for end in found.values())
    assert [e["client"] for e in named(heard, "client_failed")] == [7, 7]


def test_a_client_that_keeps_dying_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(job: Job) -> Exception | None:
        return RayActorError() if job.client.id == 1 else None

    monkeypatch.setattr(Worker, "fails", staticmethod(fails))
    found = ended(jobs(3, HEAVY))
    assert "client 1 (vgg9) failed: its process died (RayActorError) (attempt 3 of 3" in str(
        found.pop(1)
    )
    assert all(isinstance(end, Upload) for end in found.values())


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (MEMORY // 3, "OverspentError: too much (with twice the share it had first)"),
        (MEMORY * 2 // 3, "OverspentError: too much; with twice its share client 0 (vgg9) asks"),
    ],
)
def test_who_overspends_has_twice_as_much_once_if_that_fits(
    memory: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RayTaskError("run", "", OverspentError("too much"))
    monkeypatch.setattr(Worker, "fails", staticmethod(lambda job: error))
    heard: list[Told] = []
    (failed,) = ended(
        jobs(1, replace(HEAVY, memory_bytes=memory)), heard=heard, attempts=5
    ).values()
    assert reason in str(failed)
    asked = [e["requested"]["memory_bytes"] for e in named(heard, "client_start")]
    assert asked == [memory, 2 * memory][: len(asked)]
