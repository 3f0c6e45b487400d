"""How many light clients go into one call."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling.placement import CALL_SECONDS, MOST, clients_per_call


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
