"""What bundles hold and clients take: shares that fill a GPU exactly, and what is refused."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.capacity import FreeCapacity, Slot, lower_bound, need_of
from cluster.scheduling.placement import CALL_SECONDS, MOST, clients_per_call, waves
from fl.federation import Request
from tests.cluster.placing import MEMORY, ask, bundle


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.2, 0.3, 0.35, 0.7, 1])
def test_as_many_shares_fit_as_add_up_to_a_whole(share: float) -> None:
    """In floating point ten times 0.1 is not 1."""
    free = FreeCapacity(bundle(cpus=1, gpus=1))
    own, slot = need_of(ask(share, share), with_gpus=True), Slot(bundle="a", gpu=0)
    taken = 0
    while free.fits(own, slot):
        free.take(own, slot)
        taken += 1
    assert taken == Fraction(1) // Fraction(str(share))


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


def test_a_gpu_takes_one_wave_at_a_time_beside_other_clients() -> None:
    free, slot = FreeCapacity(bundle(cpus=8, gpus=1)), Slot(bundle="a", gpu=0)
    wave = need_of(replace(ask(1, 0.1), in_waves=True), with_gpus=True)
    heavy = need_of(ask(1, 0.4), with_gpus=True)
    free.take(wave, slot)
    assert not free.copy().fits(wave, slot)
    assert free.fits(heavy, slot)
    free.give(wave, slot)
    assert free.fits(wave, slot)
    on_cores = need_of(replace(ask(1, 0.1), in_waves=True), with_gpus=False)
    assert on_cores == need_of(ask(1), with_gpus=False)


def test_waves_of_one_card_count_one_after_another_in_the_bound() -> None:
    wave = replace(ask(1, 0.1), in_waves=True)
    assert lower_bound([bundle(cpus=8, gpus=2)], [(wave, 3.0)] * 8) == pytest.approx(12)


@given(st.integers(1, 3000), st.integers(1, 9))
def test_waves_are_full_even_and_end_together(clients: int, processes: int) -> None:
    found = waves(clients, 256, processes)
    assert sum(found) == clients
    assert max(found) - min(found) <= 1
    assert 1 <= min(found) <= max(found) <= 256
    rounds = -(-clients // (256 * processes))
    assert len(found) == min(clients, rounds * processes)


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
