"""Light clients that train in slots: one process a GPU, wave after wave, beside heavy clients.

On a Ray without processes.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayTaskError

from cluster.clients import actors, executor
from cluster.clients.actors import Process, Sent
from cluster.clients.executor import RayExecutor
from cluster.hardware.bundles import Bundles
from fl.events import Events
from fl.exchange import ClientNote, Upload
from fl.federation import Job, Request, Task, TaskInput, TaskOutput
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig
from tests.cluster.fake_ray import FakeRay, Reference
from tests.cluster.placing import bundle
from tests.fl.toy import PROBLEM, client, split

WAVES = Request(cpus=1, gpus=0.1, shared=True, in_waves=True)
HEAVY = Request(cpus=1, gpus=0.4)


class Worker:
    """A client's process that trains nobody, or the mailbox."""

    def __init__(self, *_: Any) -> None:
        pass

    def take(self) -> list[Any]:
        return []

    def run(self, sent: list[Sent], size: int, *columns: Any) -> list[np.ndarray]:
        notes = (ClientNote(client=each.job.client.id, seconds=1.0) for each in sent)
        return [np.frombuffer(note.pack({}), np.uint8) for note in notes]


class Standing(Bundles):
    """Nodes that do not go."""

    def lost(self) -> set[str]:
        return set()


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay(Worker)
    monkeypatch.setattr(actors, "ray", made)
    monkeypatch.setattr(executor, "ray", made)
    monkeypatch.setattr(executor, "await_gpus", lambda bundles: None)
    return made


def job(k: int, request: Request, task: Task | None = None) -> Job:
    training = ClassifierConfig() if request is HEAVY else GeneratorConfig()
    return Job(
        task=task or training.task,
        client=replace(client(k, training), request=request),
        run_spec=PROBLEM,
        indices=np.arange(9),
        broadcast=None,
        payload=None,
    )


class Calls:
    """A map's calls: how many clients each had, and which processes were at work then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, jobs: list[Job], gpus: int = 2) -> None:
        self.sizes: list[int] = []
        self.at_once: list[Counter[tuple[int | None, bool]]] = []
        there = Standing(group=None, all=(bundle("0", cpus=16, gpus=gpus),), nodes={})
        own = RayExecutor(split(3, 3, 3), there)
        submit = actors.Actors.submit

        def watched(self_: actors.Actors, process: Process, jobs: list[Job], size: int) -> Any:
            at_work = (p for p in self_.processes if not p.idle)
            self.at_once.append(Counter((p.slot.gpu, p.request.in_waves) for p in at_work))
            if process.request.shared:
                self.sizes.append(len(jobs))
            return submit(self_, process, jobs, size)

        monkeypatch.setattr(actors.Actors, "submit", watched)
        self.done = [done.client.id for done, _ in own.run(jobs, Events())]


def test_a_gpu_has_one_process_for_waves_of_hundreds(
    monkeypatch: pytest.MonkeyPatch, ray: FakeRay
) -> None:
    calls = Calls(monkeypatch, [job(k, WAVES) for k in range(1000)])
    assert sorted(calls.done) == [*range(1000)]
    assert calls.sizes == [250] * 4
    assert max(calls.at_once, key=len) == {(0, True): 1, (1, True): 1}
    assert all(count == 1 for at_work in calls.at_once for count in at_work.values())
    assert len(ray.actors) == 1 + 2  # the mailbox, and a process for each card


def test_heavy_clients_have_their_shares_beside_a_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [*(job(k, HEAVY) for k in range(8)), *(job(k, WAVES) for k in range(8, 600))]
    calls = Calls(monkeypatch, jobs, gpus=1)
    assert sorted(calls.done) == [*range(600)]
    assert calls.sizes == [198, 197, 197]
    assert {(0, True): 1, (0, False): 2} in calls.at_once


def another(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={})


def test_what_is_not_their_training_takes_no_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, [job(k, WAVES, another) for k in range(30)], gpus=1)
    assert sorted(calls.done) == [*range(30)]
    assert {(0, False): 10} in calls.at_once


def test_a_wave_that_fails_is_tried_again_by_halves_until_one_is_named(
    ray: FakeRay,
) -> None:
    class Fails(Worker):
        def run(self, sent: list[Sent], size: int, *columns: Any) -> Any:
            if any(each.job.client.id == 7 for each in sent):
                return Reference(error=RayTaskError("run", "", ArithmeticError("NaN")))
            return super().run(sent, size, *columns)

    ray.make = Fails
    there = Standing(group=None, all=(bundle("0", cpus=16, gpus=2),), nodes={})
    own = RayExecutor(split(3, 3, 3), there, attempts=1)
    found = {j.client.id: end for j, end in own.run([job(k, WAVES) for k in range(300)], Events())}
    assert "client 7 (cvae-small) failed: ArithmeticError: NaN (attempt 1" in str(found.pop(7))
    assert sorted(found) == sorted({*range(300)} - {7})
    assert all(isinstance(end, Upload) for end in found.values())
