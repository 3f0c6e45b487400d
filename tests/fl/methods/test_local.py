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
from fl.events import ClientEnd, Event, Events
from fl.executor import InProcess
from fl.federation import TaskInput, TaskOutput
from fl.methods import personal
from tests.fl.methods.personal_runs import (
    CLIENTS,
    close,
    curve,
    memories,
    partition,
    play,
    same,
    settings,
    start,
    store,
    train,
)
from tests.fl.toy import PROBLEM, client, split


def test_three_rounds_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    config = settings("local")
    outcome, clients = play("local", config, store=store(tmp_path))
    for k, own in enumerate(memories(clients)):
        model = start(config)
        for number in (1, 2, 3):
            train(model, k, number)
        assert close({n.removeprefix("classifier."): t for n, t in own.items()}, model.state_dict())
    assert outcome.model is None
    assert not any((*clients.bytes_up.values(), *clients.bytes_down.values()))


def test_who_was_absent_goes_on_with_its_own_model(tmp_path: Path) -> None:
    """Whatever the others did meanwhile: its accuracy stays what it was."""
    heard: list[Event] = []
    outcome, clients = play(
        "local",
        settings("local", participation=0.2),
        6,
        store=store(tmp_path),
        listener=heard.append,
    )
    took_part = [(e.round, e.client) for e in heard if isinstance(e, ClientEnd)]
    rounds = [outcome.start.per_client, *curve(outcome)]
    for number in range(1, 7):
        (own,) = [k for n, k in took_part if n == number]
        for k in range(CLIENTS):
            assert k == own or rounds[number][k] == rounds[number - 1][k]
    assert len({k for _, k in took_part}) > 1
    assert len(clients.remembered) == len({k for _, k in took_part})


def test_a_client_without_test_samples_is_left_out_by_name() -> None:
    cut = partition()
    without = [own[:0] if k == 3 else own for k, own in enumerate(cut.test)]
    outcome, _ = play("local", settings("local"), 1, cut=replace(cut, test=tuple(without)))
    assert outcome.figures["untested"] == [3]
    assert outcome.figures["client_accuracy"][3] is None
    others = [a for a in outcome.figures["client_accuracy"] if a is not None]
    assert outcome.epochs[-1].accuracy == sum(others) / 4


def test_the_same_clients_in_one_cohort_or_alone(tmp_path: Path) -> None:
    """Cohorts of several take the same weights to the last bit as one client after another."""
    one = play("local", settings("local"), 2, store=store(tmp_path, "one"))[1]
    few = play("local", settings("local", participation=0.4), 1, store=store(tmp_path / "other"))[1]
    assert set(few.remembered) < set(one.remembered)
    again = play("local", settings("local"), 2, store=store(tmp_path / "other", "again"))[1]
    assert same(memories(again), memories(one))


def test_who_is_absent_from_rounds_2_to_5_goes_on_with_the_memory_of_round_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(clients: Clients, share: float, number: int) -> list[int]:
        return [0, 1] if number in (1, 6) else [1]

    monkeypatch.setattr(personal, "participants", chosen)
    config = settings("local")
    _, clients = play("local", config, 6, store=store(tmp_path))
    model = start(config)
    train(model, 0, 1)
    train(model, 0, 6)
    own = {n.removeprefix("classifier."): t for n, t in memories(clients)[0].items()}
    assert close(own, model.state_dict())


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
