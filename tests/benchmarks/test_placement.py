"""The placement benchmark: its federations, its schedulers, and figures that are possible."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from federations import (
    CLASSES,
    CLIENT_NOISE,
    EPOCHS,
    GB,
    LEAST_SAMPLES,
    MACHINES,
    MODEL_NOISE,
    SAMPLES_PER_CLASS,
    SHARES,
    Job,
    Machine,
    federation,
    with_largest_request,
)
from schedulers import SCHEDULERS, Scheduler, first_come, ours, simulate, uniform

from cluster.scheduling.placement import Bundle, lower_bound
from fl.federation import Request

ROOT = Path(__file__).parents[2]


def test_every_scheduler_is_measured_against_a_bound_it_cannot_undercut(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "placement.py"), "--clients", "10", "50"]
    command += ["--crowds", "50", "100", "--seeds", "2", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "on a simulated clock" in done.stdout
    told = [json.loads(line) for line in (tmp_path / "figures.json").read_text().splitlines()]
    crowds = [row for row in told if row["kind"] == "crowd"]
    assert [row["clients"] for row in crowds] == [50, 100] * len(MACHINES)
    assert all(row["seconds_each"] > 0 < row["bytes_each"] for row in crowds)
    rows = [row for row in told if row["kind"] == "ratios"]
    assert [row["clients"] for row in rows] == [10, 50] * len(MACHINES)
    for row in rows:
        assert row["ratios"].keys() == {"ours", "first come", "uniform"}
        assert all(len(r) == 2 and min(r) >= 1 - 1e-9 for r in row["ratios"].values())


BOX = Machine(
    name="two cores",
    bundles=(Bundle(name="box", cpus=2, gpus=0, memory_bytes=4 * GB),),
    requests={},
    rates={"cnn": 1.0},
)
every_scheduler = pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)


def job(client: int, seconds: float, *, cpus: float = 1, memory: int = GB) -> Job:
    request = Request(cpus=cpus, gpus=0, memory_bytes=memory)
    return Job(client, "cnn", request, round(seconds), seconds)


def drain(scheduler: Scheduler) -> list[int]:
    """Who starts now, one after another, until nobody fits."""
    started = []
    while taken := scheduler.start():
        started.append(taken[0])
    return started


@every_scheduler
def test_clients_that_fit_run_side_by_side_and_the_others_after_them(
    make: Callable[..., Scheduler],
) -> None:
    jobs = [job(0, 3.0), job(1, 5.0), job(2, 4.0)]
    makespan = simulate(make(BOX, jobs), jobs)
    assert makespan in (7.0, 8.0, 9.0)  # whichever of them waits
    assert simulate(make(BOX, jobs[:1]), jobs[:1]) == 3.0


@every_scheduler
def test_the_time_to_start_a_client_is_spent_on_its_slot(make: Callable[..., Scheduler]) -> None:
    jobs = [job(0, 3.0, cpus=2), job(1, 5.0, cpus=2)]
    assert simulate(make(BOX, jobs), jobs, {0: 0.5, 1: 2.0}) == 10.5
    assert simulate(make(BOX, jobs), jobs, {1: 2.0}) == 10.0


@every_scheduler
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_client_runs_once_and_no_bound_is_undercut(
    make: Callable[..., Scheduler], machine: Machine
) -> None:
    jobs = federation(machine, 10, seed=1)
    scheduler, finished = make(machine, jobs), list[int]()
    finish = scheduler.finish

    def noted(client: int, seconds: float | None) -> None:
        finished.append(client)
        finish(client, seconds)

    scheduler.finish = noted  # type: ignore[method-assign]
    makespan = simulate(scheduler, jobs)
    assert sorted(finished) == list(range(10))
    assert makespan >= lower_bound(machine.bundles, [(j.request, j.seconds) for j in jobs]) - 1e-9
    assert makespan <= sum(j.seconds for j in jobs) + 1e-9


def test_first_come_goes_by_number_and_lets_smaller_ones_pass() -> None:
    jobs = [job(0, 9.0), job(1, 9.0, cpus=2), job(2, 1.0), job(3, 1.0)]
    scheduler = first_come(BOX, jobs[::-1])
    assert drain(scheduler) == [0, 2]
    scheduler.finish(2, 1.0)
    assert drain(scheduler) == [3]
    scheduler.finish(0, 9.0)
    assert drain(scheduler) == []  # the large one waits for both
    scheduler.finish(3, 1.0)
    assert drain(scheduler) == [1]


def test_memory_and_shares_of_a_gpu_are_never_given_twice() -> None:
    assert drain(first_come(BOX, [job(0, 1.0, memory=3 * GB), job(1, 1.0, memory=2 * GB)])) == [0]
    with_gpu = replace(BOX, bundles=(Bundle(name="b", cpus=9, gpus=1, memory_bytes=9 * GB),))
    shares = [replace(job(k, 1.0), request=Request(cpus=1, gpus=0.4)) for k in range(3)]
    assert drain(first_come(with_gpu, shares)) == [0, 1]


def test_uniform_requests_leave_slots_empty_that_first_come_takes() -> None:
    jobs = [job(0, 1.0, cpus=2), job(1, 5.0), job(2, 5.0)]
    assert simulate(uniform(BOX, jobs), jobs) == 11.0
    assert simulate(first_come(BOX, jobs), jobs) == 6.0


def test_ours_starts_the_longest_first() -> None:
    jobs = [job(0, 2.0), job(1, 2.0), job(2, 4.0)]
    assert drain(ours(BOX, jobs))[0] == 2
    assert simulate(ours(BOX, jobs), jobs) == 4.0
    assert simulate(first_come(BOX, jobs), jobs) == 6.0


every_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


@every_machine
@pytest.mark.parametrize("clients", [10, 50])
def test_a_federation_shares_all_samples_among_models_in_their_shares(
    machine: Machine, clients: int
) -> None:
    jobs = federation(machine, clients, seed=0)
    assert [job.client for job in jobs] == list(range(clients))
    models = [job.model for job in jobs]
    assert {name: models.count(name) for name in SHARES} == {
        name: share * clients for name, share in SHARES.items()
    }
    samples = [job.work // EPOCHS[job.model] for job in jobs]
    assert sum(samples) == CLASSES * SAMPLES_PER_CLASS
    assert min(samples) >= LEAST_SAMPLES
    assert all(job.request == machine.requests[job.model] for job in jobs)


@every_machine
def test_every_client_could_run_on_the_machine(machine: Machine) -> None:
    jobs = federation(machine, 10, seed=0)
    bound = lower_bound(machine.bundles, [(job.request, job.seconds) for job in jobs])
    assert bound >= max(job.seconds for job in jobs)


def test_times_differ_from_the_nominal_ones_by_model_and_by_client() -> None:
    """In logarithms: by an error that a model's clients share, and one of each client's own."""
    machine, shared, own = MACHINES[0], [], []
    for seed in range(30):
        errors: dict[str, list[float]] = {name: [] for name in SHARES}
        for job in federation(machine, 20, seed):
            errors[job.model].append(np.log(job.seconds / (job.work * machine.rates[job.model])))
        for of_model in errors.values():
            shared.append(np.mean(of_model))
            own += list(np.array(of_model) - np.mean(of_model))
    assert np.std(shared) == pytest.approx(MODEL_NOISE, rel=0.25)
    assert np.std(own) == pytest.approx(CLIENT_NOISE, rel=0.25)


def test_a_federation_follows_from_its_size_and_seed() -> None:
    machine = MACHINES[0]
    assert federation(machine, 10, 3) == federation(machine, 10, 3)
    assert federation(machine, 10, 3) != federation(machine, 10, 4)


def test_uniform_requests_do_for_the_largest_of_every_kind() -> None:
    first, second = federation(MACHINES[0], 10, seed=0)[:2]
    first = replace(first, request=Request(cpus=4, gpus=0.1, memory_bytes=10))
    second = replace(second, request=Request(cpus=0.5, gpus=0.7, memory_bytes=20))
    found = with_largest_request([first, second])
    assert {job.request for job in found} == {Request(cpus=4, gpus=0.7, memory_bytes=20)}
    assert [replace(job, request=first.request) for job in found] == [
        first,
        replace(second, request=first.request),
    ]
