"""How fast jobs could be at best."""

import pytest

from cluster.scheduling.capacity import lower_bound
from fl.federation import Request
from tests.cluster.placing import MEMORY, ask, bundle


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
