"""The expected time left: from measured rates at first, from what clients took later."""

import doctest
from dataclasses import replace

import pytest

from cluster.hardware.inventory import Inventory
from cluster.run import time_left
from cluster.run.time_left import TimeLeft, clients_at_once
from fl.events import (
    ClientDropped,
    ClientEnd,
    ClientProgress,
    ClientStart,
    Epoch,
    Phase,
    RoundEnd,
)
from fl.federation import Client
from tests.fl.toy import CLASSIFIER, client

WORK = CLASSIFIER.epochs * 9


def members(count: int) -> tuple[Client, ...]:
    return tuple(client(k) for k in range(count))


def start(k: int, at: float) -> ClientStart:
    return ClientStart(client=k, requested={}, seconds=at)


def end(k: int, at: float, took: float) -> ClientEnd:
    return ClientEnd(client=k, seconds_training=took, seconds=at)


def test_the_examples() -> None:
    assert doctest.testmod(time_left).failed == 0


def test_measured_rates_tell_before_any_client_has_ended() -> None:
    left = TimeLeft(members(10), {"cnn": 8 / WORK}, at_once=2)
    left(Phase(phase="local", status="start"))
    left(start(0, 3.0))
    assert left.left("local", 3.0) == pytest.approx(40)
    assert left.left("local", 13.0) == pytest.approx(30)  # it counts down between events
    assert left.left("local", 99.0) is None


def test_without_any_rate_nothing_is_told_until_a_client_has_ended() -> None:
    left = TimeLeft(members(10))
    left(start(0, 0.0))
    assert left.left("local", 0.0) is None
    left(end(0, 5.0, 5.0))
    assert left.left("local", 5.0) == pytest.approx(45)


def test_clients_one_after_another_make_it_exact_whatever_was_measured() -> None:
    left = TimeLeft(members(10), {"cnn": 1000 / WORK})
    now = 0.0
    for k in range(9):
        left(start(k, now))
        now += 5.0
        left(end(k, now, 4.0))  # and a second for what else there is
    assert left.left("local", now) == pytest.approx(5, rel=0.05)


def test_what_running_clients_tell_counts() -> None:
    left = TimeLeft(members(1), {"cnn": 10 / WORK})
    left(start(0, 0.0))
    left(ClientProgress(client=0, done=5, of=10, loss=1.0, seconds=5.0))
    assert left.left("local", 5.0) == pytest.approx(5)
    left(start(0, 6.0))  # it failed and begins anew
    assert left.left("local", 6.0) == pytest.approx(10)


def test_the_longest_client_decides_in_the_end() -> None:
    long = replace(client(1), num_samples=900)
    left = TimeLeft((client(0), long), {"cnn": 1 / WORK}, at_once=2)
    left(start(0, 0.0))
    assert left.left("local", 0.0) == pytest.approx(100)


def test_who_comes_from_the_store_or_is_left_out_leaves_no_work() -> None:
    left = TimeLeft(members(4), {"cnn": 10 / WORK})
    left(replace(end(0, 0.0, 77.0), reused=True))
    left(ClientDropped(client=1))
    left(start(2, 0.0))
    assert left.left("local", 0.0) == pytest.approx(20)


def test_ten_thousand_clients_are_counted_in_no_time() -> None:
    many = members(10_000)
    left = TimeLeft(many, {"cnn": 1 / WORK}, at_once=100)
    for c in many[:-100]:
        left(start(c.id, 0.0))
        left(end(c.id, 99.0, 1.0))
    assert left.left("local", 99.0) == pytest.approx(1, rel=0.05)


def test_rounds_take_their_mean() -> None:
    left = TimeLeft(members(2))
    for number, took in ((4, 2.0), (5, 4.0)):  # a resumed run begins later than with the first
        event = RoundEnd(
            round=number,
            rounds=20,
            took={"local": took, "server": 1.0},
            accuracy=0.5,
            bytes_up=0,
            bytes_down=0,
            seconds=100.0,
        )
        left(event)
    assert left.left("rounds", 100.0) == pytest.approx(15 * 4)


def epoch(number: int, at: float, stage: str = "fusion") -> Epoch:
    return Epoch(stage=stage, epoch=number, epochs=10, loss=1.0, accuracy=0.5, seconds=at)


def test_epochs_of_a_fit_take_their_mean_also_after_it_was_killed() -> None:
    left = TimeLeft(members(2))
    left(Phase(phase="fusion", status="start", seconds=50.0))
    left(epoch(6, 53.0))
    assert left.left("fusion", 53.0) == pytest.approx(4 * 3)
    left(epoch(7, 60.0))
    assert left.left("fusion", 60.0) == pytest.approx(3 * 5)
    left(epoch(1, 62.0, "second"))
    assert left.left("second", 62.0) == pytest.approx(9 * 2)


def test_how_many_compute_at_once() -> None:
    machine = Inventory(node="here", cpus=8, memory_bytes=2**34, gpus=(), source="machine")
    assert clients_at_once(members(100), machine) == 8
    assert clients_at_once(members(100), machine, most=3) == 3
    assert clients_at_once(members(2), machine) == 2
    request = replace(client(0).request, memory_bytes=2**33)
    greedy = tuple(replace(c, request=request) for c in members(9))
    assert clients_at_once(greedy, machine) == 2
    assert clients_at_once(tuple(client(k, cpus=16) for k in range(3)), machine) == 1
