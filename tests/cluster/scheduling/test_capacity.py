"""What bundles hold and clients take: shares that fill a GPU exactly, and what is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.capacity import (
    Bundle,
    FreeCapacity,
    Need,
    Slot,
    capacity,
    could_fit,
    lower_bound,
    need_of,
    refusal,
)
from cluster.scheduling.placement import CALL_SECONDS, MOST, clients_per_call
from fl.federation import Request
from tests.cluster.placing import MEMORY, ask, bundle, examples

needs = st.builds(Need, st.integers(0, 40_000), st.integers(0, 10_000), st.integers(0, MEMORY))


def need(cpus: float = 0, gpus: float = 0, memory_bytes: int = 0) -> Need:
    return need_of(ask(cpus, gpus, memory_bytes), with_gpus=True)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.2, 0.3, 0.35, 0.7, 1])
def test_as_many_shares_fit_as_add_up_to_a_whole(share: float) -> None:
    """In floating point ten times 0.1 is not 1."""
    free = FreeCapacity(bundle(cpus=1, gpus=1))
    own, slot = need(share, share), Slot(bundle="a", gpu=0)
    taken = 0
    while free.fits(own, slot):
        free.take(own, slot)
        taken += 1
    assert taken == Fraction(1) // Fraction(str(share))


def test_a_share_lies_on_one_gpu() -> None:
    free = FreeCapacity(bundle(gpus=2))
    first, second = free.slots(need(gpus=0.6))
    for slot in (first, second):
        free.take(need(gpus=0.6), slot)
    assert not any(free.fits(need(gpus=0.6), slot) for slot in (first, second))
    assert free.fits(need(gpus=0.4), second)


def test_who_wants_no_gpu_has_one_slot_in_a_bundle() -> None:
    (slot,) = FreeCapacity(bundle(gpus=4)).slots(need(cpus=1))
    assert slot == Slot(bundle="a", gpu=None)
    assert not [*FreeCapacity(bundle(gpus=0)).slots(need(gpus=0.5))]


def test_where_no_node_has_a_gpu_no_share_is_needed() -> None:
    assert need_of(ask(1, 0.5), with_gpus=False) == need(cpus=1)


@examples
@given(st.lists(st.tuples(needs, st.sampled_from([None, 0, 1])), max_size=5), needs)
def test_what_is_given_back_is_there_again(
    taken: list[tuple[Need, int | None]], wanted: Need
) -> None:
    free = FreeCapacity(bundle(gpus=2))
    slots = [*free.slots(wanted)]
    before = [free.fits(wanted, slot) for slot in slots]
    for own, gpu in taken:
        free.take(own, Slot(bundle="a", gpu=gpu))
    for own, gpu in reversed(taken):
        free.give(own, Slot(bundle="a", gpu=gpu))
    assert [free.fits(wanted, slot) for slot in slots] == before


def test_reckoning_ahead_leaves_what_there_is_alone() -> None:
    free, slot = FreeCapacity(bundle(cpus=2, gpus=1)), Slot(bundle="a", gpu=0)
    ahead = free.copy()
    ahead.take(need(2, 1, MEMORY), slot)
    assert free.fits(need(2, 1, MEMORY), slot)
    assert not ahead.fits(need(cpus=1), slot)


def test_all_bundles_together_hold_the_sum() -> None:
    assert capacity([bundle(cpus=2.5, gpus=1), bundle("b", cpus=4, gpus=3)]) == Need(
        cpus=need(cpus=6.5).cpus, gpu=4 * need(gpus=1).gpu, memory_bytes=2 * MEMORY
    )
    assert capacity([]) == Need(0, 0, 0)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (need(4, 1, MEMORY), True),
        (need(4.5), False),
        (need(gpus=1.5), False),  # there are two, but a share never spans them
        (need(memory_bytes=MEMORY + 1), False),
    ],
)
def test_what_an_empty_bundle_could_hold(wanted: Need, fits: bool) -> None:
    assert could_fit(bundle(cpus=4, gpus=2), wanted) is fits


@pytest.mark.parametrize(
    ("bundles", "there"),
    [
        ([bundle(cpus=1.5, gpus=2)], "there is 1.5 cores, 2 GPUs and 100 B of memory"),
        ([], "nothing"),
    ],
)
def test_a_refusal_says_in_one_line_what_was_asked_for_and_what_there_is(
    bundles: list[Bundle], there: str
) -> None:
    said = str(refusal("client 7", ask(3, 0.25, 2_000_000), bundles))
    assert said.startswith("client 7 asks for 3 cores, 0.25 of a GPU and 2.0 MB of memory")
    assert said.endswith(there)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("jobs", "bound"),
    [
        ([], 0),
        ([(ask(1), 9), (ask(1), 1)], 9),
        ([(ask(4), 5), (ask(2), 6)], 8),
        ([(ask(1, 0.5), 6), (ask(1, 1), 7), (ask(1, 1), 8)], 9),
        ([(ask(1, 0, MEMORY), 6), (ask(1, 0, MEMORY), 6)], 12),
    ],
)
def test_the_lower_bound(jobs: list[tuple[Request, float]], bound: float) -> None:
    assert lower_bound([bundle(cpus=4, gpus=2)], jobs) == pytest.approx(bound)


def test_shares_count_in_the_bound_only_where_there_are_gpus() -> None:
    assert lower_bound([bundle()], [(ask(1, 1), 6), (ask(1, 1), 6)]) == 6


def test_until_their_time_is_known_a_call_is_a_cohort() -> None:
    assert clients_per_call(4, 1000, 2, None) == 4


def test_small_clients_go_many_at_once_and_large_ones_cohort_by_cohort() -> None:
    assert clients_per_call(4, 10_000, 2, CALL_SECONDS / 12) == 12
    assert clients_per_call(4, 10_000, 2, CALL_SECONDS) == 4
    assert clients_per_call(4, 10_000, 2, CALL_SECONDS / 1000) == MOST


def test_a_few_clients_are_shared_by_the_processes() -> None:
    assert clients_per_call(32, 10, 5, None) == 2
    assert clients_per_call(1, 16, 2, 1e-6) == 4


@given(st.integers(1, 32), st.integers(1, 500), st.integers(1, 8), st.none() | st.floats(1e-6, 10))
def test_calls_shrink_until_nobody_is_left(
    cohort: int, left: int, processes: int, seconds: float | None
) -> None:
    fair = -(-left // processes)
    size = clients_per_call(cohort, left, processes, seconds)
    assert 1 <= size <= max(cohort, MOST)
    assert size <= fair
    assert size % min(cohort, fair) == 0
