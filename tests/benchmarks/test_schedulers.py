"""The simulated clock, and the two schedulers that ours is held against."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from federations import GB, MACHINES, Job, Machine, federation
from schedulers import SCHEDULERS, Scheduler, first_come, ours, simulate, uniform

from cluster.scheduling.placement import Bundle, lower_bound
from fl.federation import Request

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
