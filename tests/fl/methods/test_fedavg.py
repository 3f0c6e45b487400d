"""Two rounds of FedAvg and FedProx against a plain loop over clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from fl.clients import Clients
from fl.errors import UserError
from fl.events import ClientEnd, Event, Listener
from fl.fusion.aggregation import average_states
from fl.methods import fedavg, prototypes
from fl.methods.fedavg import FedAvgConfig
from fl.methods.prototypes import participants
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.seeding import seed_for
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig, starting_classifier
from tests.fl.methods.tiny import WatchedServer, tiny_data, tiny_federation, tiny_partition
from tests.fl.toy import Told, into, same_bits

LOCAL = ClassifierConfig(model="cnn", width=0.3, epochs=2, lr=0.05)
ALIKE = FedAvgConfig(num_large=4, classifier=LOCAL)


def federation(
    config: Any = ALIKE, listener: Listener = lambda event: None
) -> tuple[Clients, WatchedServer]:
    return tiny_federation(config, num_clients=4, assign=prototypes.assign, listener=listener)


def play(config: Any = ALIKE, rounds: int = 2, directory: Path | None = None) -> Outcome:
    clients, server = federation(config)
    return fedavg.run(clients, server, config, rounds=Rounds(rounds, directory))


def naive(clients: Clients, who: list[list[int]], mu: float = 0.0) -> nn.Module:
    """FedAvg and FedProx as their papers' boxes have them: a loop over rounds, clients, batches."""
    data, seed = tiny_data().train, clients.run_spec.seed
    shards = tiny_partition(tiny_data(), len(clients.members)).train
    model = starting_classifier(LOCAL, clients.run_spec)
    for number, chosen in enumerate(who, start=1):
        total = {name: torch.zeros_like(t) for name, t in model.state_dict().items()}
        samples = sum(clients.members[k].num_samples for k in chosen)
        for k in chosen:
            own = shards[k]
            images = torch.from_numpy(data.images[own]).float() / 255
            labels = torch.from_numpy(data.labels[own])
            local = starting_classifier(LOCAL, clients.run_spec)
            local.load_state_dict(model.state_dict())
            sgd = optim.SGD(local.parameters(), lr=LOCAL.lr, momentum=LOCAL.momentum)
            purpose = "local/order" if number == 1 else f"local/order/round {number}"
            order = torch.Generator().manual_seed(seed_for(seed, purpose, k))
            for _ in range(LOCAL.epochs):
                shuffled = torch.randperm(len(own), generator=order)
                for rows in shuffled.split(LOCAL.batch_size):
                    loss = F.cross_entropy(local(images[rows]), labels[rows])
                    for w, start in zip(local.parameters(), model.parameters(), strict=True):
                        loss = loss + mu / 2 * (w - start.detach()).square().sum()
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
            for name, tensor in local.state_dict().items():
                total[name] += len(own) / samples * tensor
        model.load_state_dict(total)
    return model


def close(outcome: Outcome, model: nn.Module) -> bool:
    (member,) = outcome.model.members  # type: ignore[union-attr]
    pairs = zip(member.parameters(), model.parameters(), strict=True)
    return all(torch.allclose(own, other, atol=1e-5) for own, other in pairs)


EVERYONE = [0, 1, 2, 3]


def test_two_rounds_are_those_of_the_plain_loop() -> None:
    outcome = play()
    clients, server = federation()
    twin = naive(clients, [EVERYONE] * 2)
    assert close(outcome, twin)
    assert not close(outcome, naive(clients, [EVERYONE]))
    assert [e.accuracy for e in outcome.epochs][-1] == server.evaluate(twin).accuracy


def test_fedprox_is_the_plain_loop_with_a_term_more() -> None:
    clients, _ = federation()
    held = replace(ALIKE, classifier=replace(LOCAL, proximal=0.5))
    assert close(play(held), naive(clients, [EVERYONE] * 2, mu=0.5))
    assert not close(play(held), naive(clients, [EVERYONE] * 2))
    assert get_method("fedprox").config().classifier.proximal > 0


def test_who_takes_part_is_drawn_anew_in_every_round() -> None:
    half = replace(ALIKE, participation=0.5)
    clients, _ = federation(half)
    who = [participants(clients, 0.5, number) for number in (1, 2, 3)]
    assert all(len(chosen) == 2 for chosen in who)
    assert len({tuple(chosen) for chosen in who}) > 1
    assert close(play(half, rounds=3), naive(clients, who))
    assert participants(clients, 0.01, 1)
    clients.dropped[who[0][0]] = "failed for good"
    assert participants(clients, 1.0, 1) == [k for k in EVERYONE if k != who[0][0]]


def test_one_round_is_unweighted_unless_it_is_told_otherwise() -> None:
    clients, _ = federation()
    states = [u.tensors for u in clients.train()]
    sizes = [c.num_samples for c in clients.members]
    assert len(set(sizes)) > 1

    def one(**changes: Any) -> dict[str, torch.Tensor]:
        (member,) = play(replace(ALIKE, **changes), rounds=1).model.members
        return {f"classifier.{n}": t for n, t in member.state_dict().items()}

    assert same_bits(one(), average_states(states))
    assert same_bits(one(weighting="samples"), average_states(states, sizes))
    assert not same_bits(one(), average_states(states, sizes))


def test_each_prototype_is_averaged_by_itself_and_sent_to_its_own() -> None:
    clients, server = federation(FedAvgConfig(classifier=LOCAL, small_width=0.2))
    outcome = fedavg.run(clients, server, FedAvgConfig(), rounds=Rounds(2))
    large, small = outcome.model.members
    assert len(large.state_dict()) == len(small.state_dict())
    for k, member in zip(EVERYONE, (large, large, small, small), strict=True):
        size = 4 * sum(t.numel() for t in member.state_dict().values())
        assert clients.bytes_down[k] == size
        assert clients.bytes_up[k] == 2 * size


def test_impossible_participation_is_refused() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(UserError, match=r"participation must be in \(0, 1\]"):
            FedAvgConfig(participation=share)


class Killed(Exception):
    pass


def test_a_killed_run_goes_on_after_its_last_round_to_the_same_bits(tmp_path: Path) -> None:
    half = replace(ALIKE, participation=0.5)
    undisturbed = play(half, rounds=4)
    heard: list[Told] = []

    def killer(event: Event) -> None:
        if isinstance(event, ClientEnd) and event.round == 3:
            raise Killed

    clients, server = federation(half, killer)
    with pytest.raises(Killed):
        fedavg.run(clients, server, half, rounds=Rounds(4, tmp_path))
    clients, server = federation(half, into(heard))
    resumed = fedavg.run(clients, server, half, rounds=Rounds(4, tmp_path))
    assert [e["round"] for e in heard if e["event"] == "round"] == [3, 4]
    assert same_bits(resumed.model.state_dict(), undisturbed.model.state_dict())
    assert (resumed.start, resumed.epochs) == (undisturbed.start, undisturbed.epochs)
    figures = [o.figures["per_round"] for o in (resumed, undisturbed)]
    for ours, theirs in zip(*figures, strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
