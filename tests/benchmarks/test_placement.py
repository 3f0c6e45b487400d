"""The placement benchmark: its federations, its schedulers, and figures that are possible."""

from collections.abc import Callable

import pytest
from federations import (
    CLASSES,
    EPOCHS,
    GB,
    LEAST_SAMPLES,
    MACHINES,
    SAMPLES_PER_CLASS,
    SHARES,
    Job,
    Machine,
    federation,
)
from placement import steps_in_slots
from schedulers import SCHEDULERS, Scheduler, first_come, ours, simulate

from cluster.scheduling.capacity import Bundle, lower_bound
from fl.federation import Request

BOX = Machine(
    name="two cores",
    bundles=(Bundle(name="box", cpus=2, gpus=0, memory_bytes=4 * GB),),
    requests={},
    rates={"cnn": 1.0},
)
every_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
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
@every_machine
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


def test_ours_starts_the_longest_first() -> None:
    jobs = [job(0, 2.0), job(1, 2.0), job(2, 4.0)]
    assert drain(ours(BOX, jobs))[0] == 2
    assert simulate(ours(BOX, jobs), jobs) == 4.0
    assert simulate(first_come(BOX, jobs), jobs) == 6.0


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


@pytest.mark.parametrize(("clients", "waves"), [(256, 1), (300, 2), (1000, 4)])
def test_waves_take_no_fewer_steps_than_refilled_slots_and_these_than_the_least(
    clients: int, waves: int
) -> None:
    row = steps_in_slots(clients, 0.5)
    assert row["least"] <= row["refilled"] <= row["waves"]
    assert row["waves"] >= waves  # each takes a step at least
    assert waves > 1 or row["refilled"] == row["waves"]
