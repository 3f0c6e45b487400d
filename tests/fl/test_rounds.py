"""Rounds: what they are timed and counted by, and what outlives the process."""

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
    drawn = torch.rand(2, generator=inputs.stream("work"))
    return TaskOutput(tensors={"drawn": drawn, "round": torch.tensor(inputs.round)})


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


def test_what_is_drawn_by_name_differs_from_round_to_round() -> None:
    clients, server = tiny_federation(num_clients=2)
    drawn = []
    for number in Rounds(2).play(clients, server, linear()):
        updates = clients.map(works)
        assert all(int(u.tensors["round"]) == number for u in updates)
        drawn += [tuple(u.tensors["drawn"].tolist()) for u in updates]
    assert len(set(drawn)) == 4


def test_what_a_round_leaves_in_memory_outlives_the_process(tmp_path: Path) -> None:
    def play(until: int) -> list[float]:
        clients, server = tiny_federation(num_clients=2)
        memory = {"sum": torch.zeros(1)}
        seen = []
        for number in Rounds(4, tmp_path).play(clients, server, linear(), memory):
            seen.append(memory["sum"].item())
            if number > until:
                break
            memory["sum"] += number
        return seen

    assert play(until=2) == [0, 1, 3]
    assert play(until=4) == [3, 6]


def test_the_state_of_another_run_is_not_gone_on_from(tmp_path: Path) -> None:
    def played(seed: int) -> list[int]:
        clients, server = tiny_federation(num_clients=2)
        return list(Rounds(2, tmp_path, f"seed {seed}").play(clients, server, linear()))

    assert played(seed=0) == [1, 2]
    assert played(seed=0) == []
    assert played(seed=1) == [1, 2]
