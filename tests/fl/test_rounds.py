"""Rounds: what they are timed and counted by; tests/fl/methods has what outlives a process."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fl.federation import TaskInput, TaskOutput
from fl.rounds import Rounds
from tests.fl.methods.tiny import NoStore, tiny_federation
from tests.fl.toy import Told, into

WORK_S, STORE_S, SERVER_S = 5.0, 0.25, 10.0


class Clock:
    """A clock that only what is timed here moves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for name in ("time", "perf_counter"):
            patch.setattr(time, name, lambda: self.now)

    def works(self, inputs: TaskInput) -> TaskOutput:
        self.now += WORK_S
        return TaskOutput(tensors={"sent": torch.zeros(4)})


class Slow(NoStore):
    """Takes its time for each upload."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def put(self, key: str, client: int, packed: bytes) -> None:
        self._clock.now += STORE_S


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


def test_a_round_is_timed_and_its_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Told] = []
    clock = Clock(monkeypatch)
    clients, server = tiny_federation(num_clients=3, listener=into(heard), store=Slow(clock))
    rounds, model = Rounds(2), linear()
    for _ in rounds.play(clients, server, model):
        clients.map(clock.works, broadcast={"sent": torch.zeros(5)})
        clock.now += SERVER_S
    told = [e for e in heard if e["event"] == "round"]
    assert [(e["round"], e["rounds"]) for e in told] == [(1, 2), (2, 2)]
    for event in told:
        assert (event["bytes_up"], event["bytes_down"]) == (3 * 16, 3 * 20)
        took = {"local": 3 * WORK_S, "server": SERVER_S, "overhead": 3 * STORE_S}
        assert event["took"] == took
    outcome = rounds.outcome(model)
    assert [e.accuracy for e in outcome.epochs] == [e["accuracy"] for e in told]
    assert [r["round"] for r in outcome.figures["per_round"]] == [1, 2]


def test_who_was_dropped_before_a_start_is_named_after_it_too(tmp_path: Path) -> None:
    for count, expected in ((1, []), (2, ["it died"])):
        heard: list[Told] = []
        clients, server = tiny_federation(num_clients=3, listener=into(heard))
        for number in Rounds(count, tmp_path / "rounds").play(clients, server, linear()):
            if number == 1:
                clients.dropped[2] = "it died"
        assert [e["reason"] for e in heard if e["event"] == "client_dropped"] == expected
