"""How much of the machine a trial gets: enough for every client, and whole GPUs."""

import pytest

from fl.federation import Request
from tune.tuning import DRIVER_BYTES, concurrency, trial_bundle

GB = 10**9
LIGHT, HEAVY = Request(cpus=0.5, gpus=0.1), Request(cpus=2, gpus=0.4, memory_bytes=3 * GB)


def node(cpus: float, memory: float, gpus: float = 0) -> dict[str, float]:
    return {"CPU": cpus, "memory": memory, "GPU": gpus} if gpus else {"CPU": cpus, "memory": memory}


@pytest.mark.parametrize(
    ("nodes", "trials", "expected"),
    [
        ([node(16, 64 * GB)], 4, {"CPU": 4, "memory": 16 * GB}),
        ([node(16, 64 * GB)], 1, {"CPU": 16, "memory": 64 * GB}),
        ([node(4, 64 * GB)], 8, {"CPU": 2, "memory": 8 * GB}),  # the heavy client's cores
        ([node(16, 8 * GB)], 8, {"CPU": 2, "memory": 3 * GB}),  # and its memory
        ([node(16, 64 * GB, 4)], 2, {"CPU": 8, "memory": 32 * GB, "GPU": 2}),
        ([node(16, 64 * GB, 2)], 8, {"CPU": 2, "memory": 8 * GB, "GPU": 1}),  # never half of one
        ([node(8, 64 * GB), node(16, 32 * GB)], 4, {"CPU": 4, "memory": 16 * GB}),
    ],
)
def test_a_trial_gets_an_even_part_and_no_less_than_a_client_needs(
    nodes: list[dict[str, float]], trials: int, expected: dict[str, float]
) -> None:
    assert trial_bundle(nodes, [LIGHT, HEAVY], trials) == expected


def test_without_a_word_there_is_a_trial_per_gpu() -> None:
    assert concurrency([node(16, 64 * GB, 2), node(16, 64 * GB, 2)], [LIGHT, HEAVY]) == 4


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(16, 1000 * GB)], 8),  # two cores for the heavy client
        ([node(16, 3 * (3 * GB + DRIVER_BYTES))], 3),
        ([node(1, GB)], 1),
        ([{"CPU": 4}, node(1, GB)], 3),
    ],
)
def test_without_gpus_cores_and_memory_decide(nodes: list[dict[str, float]], expected: int) -> None:
    assert concurrency(nodes, [LIGHT, HEAVY]) == expected
