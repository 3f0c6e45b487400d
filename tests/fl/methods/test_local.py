"""Training alone: nothing is exchanged, and each client goes on from its own model."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from cluster.clients.store import Store
from fl.clients import Clients
from fl.events import Events
from fl.executor import InProcess
from fl.federation import TaskInput, TaskOutput
from fl.methods import personal
from tests.fl.methods.personal_runs import (
    CLIENTS,
    alone,
    close,
    curve,
    memories,
    partition,
    plain,
    play,
    remembered,
    settings,
    start,
    train,
)
from tests.fl.toy import PROBLEM, client, split


def test_three_rounds_are_those_of_a_plain_loop() -> None:
    config = settings("local")
    outcome, clients = alone()
    own = [start(config) for _ in range(CLIENTS)]
    for k, model in enumerate(own):
        for number in (1, 2, 3):
            train(model, k, number)
    assert remembered(clients, own)
    assert outcome.model is None
    assert not any((*clients.bytes_up.values(), *clients.bytes_down.values()))


def test_what_fedavg_would_have_sent_is_what_it_sends() -> None:
    _, fedavg = play("fedavg", settings("fedavg", participation=0.4), 2)
    alone, _ = play("local", settings("local", participation=0.4), 2)
    assert alone.figures["fedavg_bytes_up"] == sum(fedavg.bytes_up.values())


def test_a_client_without_test_samples_is_left_out_by_name() -> None:
    cut = partition()
    without = [own[:0] if k == 3 else own for k, own in enumerate(cut.test)]
    outcome, _ = play("local", settings("local"), 1, cut=replace(cut, test=tuple(without)))
    assert outcome.figures["untested"] == [3]
    assert outcome.figures["client_accuracy"][3] is None
    others = [a for a in outcome.figures["client_accuracy"] if a is not None]
    assert outcome.epochs[-1].accuracy == sum(others) / 4


def test_who_is_absent_from_rounds_2_and_3_goes_on_with_the_memory_of_round_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(clients: Clients, share: float, number: int) -> list[int]:
        return [0, 1] if number in (1, 4) else [1]

    monkeypatch.setattr(personal, "participants", chosen)
    config = settings("local")
    outcome, clients = play("local", config, 4)
    assert len({scores[0] for scores in curve(outcome)[:3]}) == 1  # whatever the others did
    assert set(clients.remembered) == {0, 1}
    model = start(config)
    train(model, 0, 1)
    train(model, 0, 4)
    assert close(plain(memories(clients)[0]), model.state_dict())


def test_of_the_clients_memories_few_are_in_this_process_at_once() -> None:
    """They are read when a client starts: not all of them would fit."""
    size, many = 2**18, 60
    members = [client(k) for k in range(many)]
    shards = [np.array([k]) for k in range(many)]
    data = split(20, 20, 20)
    with TemporaryDirectory() as folder:
        kept = Store(Path(folder) / "pool", Path(folder) / "updates", data)
        clients = Clients(members, shards, PROBLEM, InProcess(data), kept, Events())
        clients.map(remembers_much, remember=True)
        tracemalloc.start()
        clients.map(remembers_much, remember=True)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8 * size < many * size / 5


def remembers_much(inputs: TaskInput) -> TaskOutput:
    return TaskOutput(tensors={"own": torch.full((2**16,), float(inputs.client.id))})
