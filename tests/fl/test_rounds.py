"""Rounds: what they are timed and counted by; tests/fl/methods has what outlives a process."""

import time
from pathlib import Path

import torch
from torch import nn

from fl.federation import TaskInput, TaskOutput
from fl.rounds import Rounds
from tests.fl.methods.tiny import tiny_federation
from tests.fl.toy import Told, into

WORK_S, SERVER_S = 0.05, 0.1


def works(inputs: TaskInput) -> TaskOutput:
    time.sleep(WORK_S)
    return TaskOutput(tensors={"sent": torch.zeros(4)})


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


def test_a_round_is_timed_and_its_bytes_are_counted() -> None:
    heard: list[Told] = []
    clients, server = tiny_federation(num_clients=3, listener=into(heard))
    rounds, model = Rounds(2), linear()
    for _ in rounds.play(clients, server, model):
        clients.map(works, broadcast={"sent": torch.zeros(5)})
        time.sleep(SERVER_S)
    told = [e for e in heard if e["event"] == "round"]
    assert [(e["round"], e["rounds"]) for e in told] == [(1, 2), (2, 2)]
    for event in told:
        assert (event["bytes_up"], event["bytes_down"]) == (3 * 16, 3 * 20)
        took = event["took"]
        assert took["local"] >= 3 * WORK_S
        assert took["server"] >= SERVER_S
        assert 0 < took["overhead"] < 3 * WORK_S
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
