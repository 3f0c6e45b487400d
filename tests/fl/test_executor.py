"""A client's job in this process: its shard, its threads, its note, its failures."""

import gc
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fl.errors import ClientFailed
from fl.events import Events
from fl.exchange import Tensors, Upload, pack, unpack
from fl.executor import InProcess, run_jobs, time_limit
from fl.federation import Job, Task, TaskInput, TaskOutput
from fl.json_files import JsonObject
from fl.training.recipe import Recipe
from fl.training.sizes import CohortSizes, work
from fl.training.task import task_for_many, task_of, train_by_recipe
from tests.fl.toy import GENERATOR, PROBLEM, VGG, Told, client, into, named, same_bits, split
from tests.waiting import wait_until

TRAIN = split(4, 4, 4)


def job(task: Task, id: int = 0, *, cpus: float = 1) -> Job:
    return Job(
        task=task,
        client=client(id, cpus=cpus),
        run_spec=PROBLEM,
        indices=np.array([0, 5, 6]),
        broadcast=None,
        payload=None,
    )


def ran(job: Job) -> tuple[Tensors, JsonObject]:
    """What its client uploads, and the note."""
    return unpack(run_jobs([job], TRAIN)[0])


def sees_its_shard(inputs: TaskInput) -> TaskOutput:
    tensors = {"images": inputs.shard.images, "counts": inputs.shard.label_counts}
    return TaskOutput(tensors=tensors, stats={"id": inputs.client.id})


def counts_threads(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={}, stats={"threads": torch.get_num_threads()})


def echoes(inputs: TaskInput) -> TaskOutput:
    assert inputs.run_spec == PROBLEM
    return TaskOutput(tensors={**inputs.broadcast, **inputs.payload})


def fails(inputs: TaskInput) -> TaskOutput:
    torch.set_num_threads(3)
    raise RuntimeError("out of luck")


def test_the_limit_is_the_users_or_generous_or_none_where_nothing_is_measured() -> None:
    jobs = [job(sees_its_shard, id) for id in (0, 1)]
    model, samples = jobs[0].client.model, sum(map(work, jobs))
    assert time_limit(jobs, 5.0, {model: 1.0}) == 10
    assert time_limit(jobs, None, {}) is None
    assert time_limit(jobs, None, {model: 1e-6}) == 600
    assert time_limit(jobs, None, {model: 100.0}) == pytest.approx(20 * 100 * samples)


def test_a_wave_of_few_may_take_as_long_as_a_full_one() -> None:
    def wave(samples: list[int]) -> list[Job]:
        jobs = [light(k, size=n) for k, n in enumerate(samples)]
        request = replace(jobs[0].client.request, in_waves=True)
        return [replace(j, client=replace(j.client, request=request)) for j in jobs]

    rates = {"cvae-small": 100.0}
    few = time_limit(wave([9, 3]), None, rates)
    assert few == time_limit(wave([9] * 256), None, rates)
    assert few == time_limit([light(k, size=9) for k in range(256)], None, rates)


def test_in_process_cohorts_go_on_with_the_size_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def fits_by_four(cohort: Sequence[TaskInput]) -> list[TaskOutput]:
        sizes.append(len(cohort))
        if len(cohort) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [TaskOutput(tensors={}) for _ in cohort]

    task = task_for_many(fits_by_four)
    jobs = [replace(light(k, size=9), task=task) for k in range(64)]
    monkeypatch.setattr("fl.training.sizes._in_waves", lambda job: True)
    monkeypatch.setattr("fl.training.sizes.SLOTS", 16)
    found = list(InProcess(TRAIN).run(jobs, Events()))
    assert all(isinstance(end, Upload) for _, end in found)
    assert [job.client.id for job, _ in found] == [*range(64)]
    assert sizes == [16, 8, 4, 4, 8, *[4] * 14]


def slow(inputs: TaskInput) -> TaskOutput:
    time.sleep(0.5)
    return TaskOutput(tensors={})


def test_in_process_who_takes_longer_is_named_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def until_named(inputs: TaskInput) -> TaskOutput:
        wait_until(lambda: caplog.messages)
        return TaskOutput(tensors={})

    executor = InProcess(TRAIN, timeout=0.1)
    results = [result for _, result in executor.run([job(until_named, id=7)], Events())]
    assert isinstance(results[0], Upload)
    (line,) = caplog.messages
    assert "client 7 has not finished within 0.1 s" in line
    assert "Ctrl-C" in line
    executor = InProcess(TRAIN, timeout=600)
    list(executor.run([job(slow, id=7)], Events()))
    assert len(caplog.messages) == 1


def test_a_task_sees_its_own_shard_as_numbers_in_zero_to_one() -> None:
    tensors, note = ran(job(sees_its_shard, id=3))
    assert torch.equal(tensors["images"] * 255, torch.tensor(TRAIN.images[[0, 5, 6]]).float())
    assert tensors["counts"].tolist() == [1, 2, 0]
    assert note["stats"] == {"id": 3}


def test_a_task_sees_what_it_was_sent() -> None:
    sent = replace(
        job(echoes),
        broadcast=pack({"weights": torch.ones(2)}, {}),
        payload=pack({"own": torch.zeros(1)}, {}),
    )
    tensors, _ = ran(sent)
    assert {name: t.tolist() for name, t in tensors.items()} == {"weights": [1, 1], "own": [0]}
    assert ran(job(echoes))[0] == {}


def test_the_note_tells_who_trained_what_where_and_how_long() -> None:
    _, note = ran(job(counts_threads, id=7))
    assert (note["client"], note["role"], note["model"]) == (7, "classifier", "cnn")
    assert note["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert 0 <= note["seconds"] < 60


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (1, 1), (2, 2)])
def test_a_task_computes_with_the_threads_it_asked_for(cpus: float, threads: int) -> None:
    _, note = ran(job(counts_threads, cpus=cpus))
    assert note["stats"]["threads"] == threads


def test_threads_are_back_to_what_they_were_after_a_job_and_after_a_failure() -> None:
    before = torch.get_num_threads()
    ran(job(counts_threads, cpus=before + 1))
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError, match="out of luck"):
        ran(job(fails, cpus=before + 1))
    assert torch.get_num_threads() == before


def test_an_upload_does_not_depend_on_the_threads_of_the_process() -> None:
    before = torch.get_num_threads()
    uploads = []
    training = replace(job(train_by_recipe), client=client(0, replace(VGG, epochs=1)))
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            uploads.append(ran(training)[0])
    finally:
        torch.set_num_threads(before)
    assert same_bits(*uploads)


def test_in_process_jobs_run_in_turn_and_tell_when_they_start() -> None:
    heard: list[Told] = []
    results = InProcess(TRAIN).run([job(echoes, id=4), job(echoes, id=2)], Events(into(heard)))
    assert heard == []
    first, _ = next(results)
    assert first.client.id == 4
    assert [e["client"] for e in named(heard, "client_start")] == [4]
    second, _ = next(results)
    assert second.client.id == 2
    assert [e["client"] for e in named(heard, "client_start")] == [4, 2]
    assert next(results, None) is None


def test_a_failure_names_the_client_keeps_its_cause_and_lets_the_others_run() -> None:
    results = InProcess(TRAIN).run([job(fails, id=5), job(echoes, id=6)], Events())
    failed, outcome = next(results)
    assert failed.client.id == 5
    assert isinstance(outcome, ClientFailed)
    assert str(outcome) == "client 5 (cnn) failed: RuntimeError: out of luck"
    assert isinstance(outcome.__cause__, RuntimeError)
    assert isinstance(next(results)[1], Upload)


def light(id: int, task: Task = train_by_recipe, size: int = 3) -> Job:
    own = client(id, GENERATOR)
    own = replace(own, num_samples=size, request=replace(own.request, shared=True))
    return replace(job(task), client=own, indices=np.arange(size))


@task_of
def fails_on_two(inputs: TaskInput) -> Recipe:
    if inputs.client.id == 2:
        raise ArithmeticError("the loss is NaN")
    return inputs.client.training.recipe(inputs)  # type: ignore[attr-defined]


def fixed(size: int) -> CohortSizes:
    sizes = CohortSizes()
    sizes.next = lambda job: size  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("size", [2, 8])
def test_a_cohort_leaves_what_each_client_would_have_left_alone(size: int) -> None:
    jobs = [light(k, size=3 + k) for k in range(5)]
    events: list[Told] = []
    executor = InProcess(TRAIN, fixed(size))
    results = {j.client.id: p for j, p in executor.run(jobs, Events(into(events)))}
    alone_or_last = [not p.followed for p in results.values() if isinstance(p, Upload)]
    assert alone_or_last == [(k + 1) % size == 0 or k == 4 for k in range(5)]
    assert sorted(e["client"] for e in named(events, "client_start")) == [0, 1, 2, 3, 4]
    for own in jobs:
        tensors, note = unpack(bytes(results[own.client.id]))
        alone, alone_note = ran(own)
        assert same_bits(tensors, alone)
        assert note["stats"] == alone_note["stats"]
        assert note["cohort"] == (1 if size == 2 and own.client.id == 0 else min(size, 5))


def test_a_cohort_reports_each_clients_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl.events.PERIOD_S", 0.0)
    events: list[Told] = []
    jobs = [light(k, size=3 + k) for k in range(2)]
    list(InProcess(TRAIN, fixed(2)).run(jobs, Events(into(events))))
    told = {(e["client"], e["done"], e["of"]) for e in named(events, "client_progress")}
    assert told == {(k, done, 2) for k in (0, 1) for done in (1, 2)}


def test_only_light_clients_of_one_training_record_share_a_cohort() -> None:
    heavy = replace(light(3), client=client(3, GENERATOR))
    wide = light(4)
    wide = replace(wide, client=replace(wide.client, training=replace(GENERATOR, width=0.2)))
    results = InProcess(TRAIN, fixed(8)).run([light(0), light(1), heavy, wide], Events())
    cohorts = {j.client.id: unpack(bytes(packed))[1]["cohort"] for j, packed in results}
    assert cohorts == {0: 2, 1: 2, 3: 1, 4: 1}


def test_what_a_failed_cohort_took_is_free_before_its_halves_train() -> None:
    """Else a cohort that was too large for a GPU would leave no room for them."""
    took: list[weakref.ref[Tensor]] = []

    def takes(clients: Sequence[TaskInput]) -> list[TaskOutput]:
        assert all(own() is None for own in took)
        memory = torch.zeros(9)
        took.append(weakref.ref(memory))
        if len(clients) > 1:
            raise torch.OutOfMemoryError(f"{len(clients)} clients")
        return [TaskOutput(tensors={})]

    task = task_for_many(takes)
    jobs = [light(k, task) for k in range(4)]
    gc.disable()
    try:
        ended = [outcome for _, outcome in InProcess(TRAIN, fixed(4)).run(jobs, Events())]
    finally:
        gc.enable()
    assert all(isinstance(outcome, Upload) for outcome in ended)
    assert len(took) == 7


def test_who_fails_in_a_cohort_is_named_alone_and_the_others_are_kept() -> None:
    jobs = [light(k, fails_on_two) for k in range(4)]
    ended = dict.fromkeys(range(4))
    ended |= {j.client.id: o for j, o in InProcess(TRAIN, fixed(4)).run(jobs, Events())}
    assert str(ended[2]) == "client 2 (cvae-small) failed: ArithmeticError: the loss is NaN"
    assert all(isinstance(ended[k], Upload) for k in (0, 1, 3))
