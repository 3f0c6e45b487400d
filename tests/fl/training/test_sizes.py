"""How many clients train as one: learned from the cohorts that ran."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl.exchange import ClientNote
from fl.federation import Job
from fl.training.sizes import SIZES, TRIALS, CohortSizes, groups, take
from fl.training.slots import SLOTS
from fl.training.task import train_by_recipe
from fl.whole_files import write_sealed
from tests.fl.toy import CLASSIFIER, GENERATOR, PROBLEM, client


def job(id: int = 0, *, samples: int = 10, shared: bool = True, memory_bytes: int = 0) -> Job:
    own = client(id, GENERATOR)
    request = replace(own.request, shared=shared, memory_bytes=memory_bytes)
    return Job(
        task=train_by_recipe,
        client=replace(own, num_samples=samples, request=request),
        run_spec=PROBLEM,
        indices=np.arange(samples),
        broadcast=None,
        payload=None,
    )


def learn(sizes: CohortSizes, one: Job, rate: Callable[[int], float], peak: int = 0) -> list[int]:
    """The sizes proposed until the choice stands, each cohort taking ``rate(size)`` a client."""
    proposed: list[int] = []
    for _ in range(TRIALS * len(SIZES) + 2):
        size = sizes.next(one)
        proposed.append(size)
        note = ClientNote(seconds=rate(size), peak_bytes=peak)
        sizes.learn([one] * size, [note] * size)
    return proposed


@pytest.mark.parametrize("best", SIZES)
def test_the_quickest_size_is_found_and_kept(best: int) -> None:
    proposed = learn(CohortSizes(), job(), lambda size: 1 + 0.5 * abs(np.log2(size / best)))
    assert proposed[-1] == best
    assert all(proposed.count(size) >= TRIALS for size in SIZES if size <= best)
    assert max(proposed) <= 2 * best


def test_where_company_is_no_gain_clients_train_one_by_one() -> None:
    assert learn(CohortSizes(), job(), lambda size: 1.0)[-1] == 1
    assert learn(CohortSizes(), job(), lambda size: 1.0 + size / 4)[-1] == 1


def test_sizes_without_a_gain_end_the_search_before_uploads_fill_memory() -> None:
    assert max(learn(CohortSizes(), job(), lambda size: 1.0)) == 4
    slowly = {1: 1.0, 2: 0.98, 4: 0.9, 8: 0.89, 16: 0.88, 32: 0.1}
    proposed = learn(CohortSizes(), job(), slowly.__getitem__)
    assert (max(proposed), proposed[-1]) == (16, 4)


def test_a_slow_first_cohort_does_not_count() -> None:
    """The first one in a process warms up."""
    first = iter([50.0])
    proposed = learn(CohortSizes(), job(), lambda size: next(first, size * 1.0))
    assert proposed[-1] == 1


def test_a_cohort_stays_within_the_share_of_memory() -> None:
    proposed = learn(CohortSizes(), job(memory_bytes=450), lambda size: 1 / size, peak=100)
    assert max(proposed) == 4


def test_heavy_clients_have_no_company() -> None:
    sizes = CohortSizes()
    assert set(learn(sizes, job(shared=False), lambda size: 1 / size)) == {1}
    assert sizes.next(replace(job(), task=lambda inputs: None)) == 1  # type: ignore[arg-type, return-value]


def test_a_few_clients_of_a_gpu_are_one_cohort() -> None:
    request = replace(job().client.request, gpus=1)
    jobs = [replace(j, client=replace(j.client, request=request)) for j in map(job, range(5))]
    (group,) = groups(jobs)
    assert len(take(group, CohortSizes().next(group[0]))) == 5


def test_waves_need_no_trials() -> None:
    sizes, one = CohortSizes(), job()
    request = replace(one.client.request, in_waves=True)
    one = replace(one, client=replace(one.client, request=request))
    assert set(learn(sizes, one, lambda size: 1.0)) == {SLOTS}
    assert sizes.knows(one)
    assert sizes.next(replace(one, task=lambda inputs: None)) == 1  # type: ignore[arg-type, return-value]


def test_what_was_learned_is_remembered_by_model_and_device(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cohorts"
    learn(CohortSizes(cache), job(), lambda size: 1 / size)
    again = CohortSizes(cache)
    assert again.next(job()) == SIZES[-1]
    assert again.knows(job())
    assert not CohortSizes().knows(job())
    other = replace(job(), client=replace(job().client, training=replace(GENERATOR, width=0.2)))
    assert again.next(other) == 1


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1000}', '{"x": "y"}'])
def test_a_damaged_memory_is_none(tmp_path: Path, content: str) -> None:
    cache = tmp_path / "cohorts"
    write_sealed(cache, content.encode())
    assert CohortSizes(cache).next(job()) == 1


def test_groups_hold_who_may_train_together_longest_first() -> None:
    other = replace(job(2), client=client(2, CLASSIFIER))
    light = [job(0, samples=3), job(1, samples=9), job(3, samples=5)]
    found = groups([light[0], other, *light[1:], job(4, shared=False)])
    assert [[j.client.id for j in group] for group in found] == [[1, 3, 0], [2], [4]]


def test_a_cohort_is_taken_from_the_front() -> None:
    group = deque([job(0), job(1), job(2)])
    assert [j.client.id for j in take(group, 2)] == [0, 1]
    assert [j.client.id for j in take(group, 2)] == [2]
    assert not group
