"""How many clients compute at once, and durations in words."""

import doctest
from dataclasses import replace

from cluster.hardware.inventory import Inventory
from cluster.run import time_left
from cluster.run.time_left import clients_at_once
from fl.federation import Client
from tests.fl.toy import client


def members(count: int) -> tuple[Client, ...]:
    return tuple(client(k) for k in range(count))


def test_the_examples() -> None:
    assert doctest.testmod(time_left).failed == 0


def test_how_many_compute_at_once() -> None:
    machine = Inventory(node="here", cpus=8, memory_bytes=2**34, gpus=(), source="machine")
    assert clients_at_once(members(100), machine) == 8
    assert clients_at_once(members(100), machine, most=3) == 3
    assert clients_at_once(members(2), machine) == 2
    request = replace(client(0).request, memory_bytes=2**33)
    greedy = tuple(replace(c, request=request) for c in members(9))
    assert clients_at_once(greedy, machine) == 2
    assert clients_at_once(tuple(client(k, cpus=16) for k in range(3)), machine) == 1
