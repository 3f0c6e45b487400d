"""How many clients fit at once, and requests that can never be met."""

import pytest

from cluster.inventory import Inventory, take_inventory
from fl.errors import UserError
from fl.federation import Request


def test_cores_alone_bound_clients_on_a_machine_without_gpus() -> None:
    machine = Inventory(cpus=4, gpus=0)
    assert machine.at_once(Request(cpus=1, gpus=0.5)) == 4
    assert machine.at_once(Request(cpus=0.5, gpus=0)) == 8
    assert machine.scaled(Request(cpus=1, gpus=0.5)).gpus == 0


def test_a_gpu_share_never_spans_two_gpus() -> None:
    machine = Inventory(cpus=64, gpus=2)
    assert machine.at_once(Request(cpus=1, gpus=0.4)) == 4
    assert machine.at_once(Request(cpus=1, gpus=0.2)) == 10
    assert machine.at_once(Request(cpus=32, gpus=0.2)) == 2


def test_a_request_for_more_cores_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="asks for 3 cores, this machine has 2"):
        Inventory(cpus=2, gpus=0).check("classifier", Request(cpus=3, gpus=0))


def test_this_machine_has_at_least_one_core() -> None:
    assert take_inventory().cpus >= 1


@pytest.mark.parametrize(("cpus", "threads"), [(0.1, 1), (1, 1), (3, 3)])
def test_threads_follow_from_the_request_alone(cpus: float, threads: int) -> None:
    assert Request(cpus=cpus, gpus=0).threads == threads
