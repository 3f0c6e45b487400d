"""FedAvg and its relatives against plain loops, what they send, and what they refuse."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.errors import ClientFailed, UserError
from fl.events import Event
from fl.federation import Client, Request, Training, Update
from fl.fusion.aggregation import average_states
from fl.methods.averaging import Averaging
from fl.methods.fednova import steps
from fl.methods.prototypes import ParticipationConfig, participants
from fl.methods.registry import get_method
from fl.models.common import parameters_sent
from fl.rounds import Rounds
from fl.training.task import conflict
from tests.fl.methods.averaged import (
    CLIENTS,
    SMALL,
    WITHOUT_NORM,
    averaged,
    batches,
    close,
    fedavg,
    federation,
    member,
    play,
    reused,
    same_model,
    samples,
    settings,
    start,
    store,
    train,
    weights,
)
from tests.fl.toy import same_bits, shard, task_input

# FedAvg and FedProx.

EVERYONE = list(range(CLIENTS))


def fedavg_loop(who: list[list[int]], mu: float = 0.0) -> dict[str, Tensor]:
    """FedAvg and FedProx as their papers' boxes have them: a loop over rounds and clients."""
    model = start()
    for number, chosen in enumerate(who, start=1):
        sent = deepcopy(model.state_dict())

        def near(net: nn.Module, *_: Tensor) -> Tensor:
            apart = [(w - sent[n]).square().sum() for n, w in net.named_parameters()]  # noqa: B023
            return mu / 2 * torch.stack(apart).sum()

        states = [train(deepcopy(model), k, number, near).state_dict() for k in chosen]
        sizes = [len(samples(k)[1]) for k in chosen]
        model.load_state_dict(averaged(states, [size / sum(sizes) for size in sizes]))
    return model.state_dict()


def test_fedavgs_rounds_are_those_of_the_plain_loop() -> None:
    outcome, _ = play("fedavg", settings("fedavg"))
    twin = start()
    twin.load_state_dict(fedavg_loop([EVERYONE] * 2))
    assert close(outcome, twin.state_dict())
    assert not close(outcome, fedavg_loop([EVERYONE]))
    _, server = federation("fedavg", settings("fedavg"))
    assert outcome.epochs[-1].accuracy == server.evaluate(twin.eval()).accuracy


def test_fedprox_is_the_plain_loop_with_a_term_more() -> None:
    held, _ = play("fedprox", settings("fedprox", proximal=0.5))
    assert close(held, fedavg_loop([EVERYONE] * 2, mu=0.5))
    assert not close(held, fedavg_loop([EVERYONE] * 2))
    assert get_method("fedprox").config().classifier.proximal > 0


def test_who_takes_part_is_drawn_anew_in_every_round() -> None:
    half = settings("fedavg", participation=0.5)
    clients, _ = federation("fedavg", half)
    who = [participants(clients, half, number) for number in (1, 2, 3)]
    assert all(len(chosen) == 2 for chosen in who)
    assert len({tuple(chosen) for chosen in who}) > 1
    assert close(play("fedavg", half, 3)[0], fedavg_loop(who))
    assert participants(clients, ParticipationConfig(participation=0.01), 1)
    clients.dropped[who[0][0]] = "failed for good"
    assert participants(clients, ParticipationConfig(participation=1.0), 1) == [
        k for k in EVERYONE if k != who[0][0]
    ]


def test_where_newcomers_alone_are_left_nobody_takes_part() -> None:
    clients, _ = federation("fedavg", settings("fedavg"))
    clients.dropped.update(dict.fromkeys(EVERYONE[:-1], "out of power"))
    with pytest.raises(ClientFailed, match="out of power; no client that takes part is left"):
        participants(clients, ParticipationConfig(newcomers=1), 2)


def test_one_round_is_unweighted_unless_it_is_told_otherwise() -> None:
    clients, _ = federation("fedavg", settings("fedavg"))
    states = [u.tensors for u in clients.train()]
    sizes = [c.num_samples for c in clients.members]
    assert len(set(sizes)) > 1

    def one(**changes: Any) -> dict[str, Tensor]:
        average = member(play("fedavg", settings("fedavg", **changes), 1)[0])
        return {f"classifier.{n}": t for n, t in average.state_dict().items()}

    assert same_bits(one(), average_states(states))
    assert same_bits(one(weighting="samples"), average_states(states, sizes))
    assert not same_bits(one(), average_states(states, sizes))


# FedAdagrad, FedAdam and FedYogi.


@cache
def adaptive_loop(rounds: int, name: str) -> dict[str, Tensor]:
    beta1 = 0.0 if name == "fedadagrad" else 0.9
    x, tau = start(), 0.01
    m = {n: torch.zeros_like(p) for n, p in x.named_parameters()}
    v = {n: torch.full_like(p, tau**2) for n, p in x.named_parameters()}
    for number in range(1, rounds + 1):
        clients = [train(deepcopy(x), k, number).state_dict() for k in range(CLIENTS)]
        mean = averaged(clients, weights())
        state = x.state_dict()
        for n in m:
            d = (mean[n] - state[n]).float()
            m[n] = beta1 * m[n] + (1 - beta1) * d
            v[n] = {
                "fedadagrad": v[n] + d**2,
                "fedadam": 0.99 * v[n] + 0.01 * d**2,
                "fedyogi": v[n] - 0.01 * d**2 * (v[n] - d**2).sign(),
            }[name]
            state[n] = state[n] + 0.1 * m[n] / (v[n].sqrt() + tau)
        x.load_state_dict(state)
    return x.state_dict()


NAMES = ["fedadagrad", "fedadam", "fedyogi"]


@pytest.mark.parametrize("name", NAMES)
def test_an_adaptive_servers_rounds_are_those_of_a_plain_loop(name: str) -> None:
    own = settings(name, server_lr=0.1, adaptivity=0.01)
    outcome, _ = play(name, own, 3)
    assert close(outcome, adaptive_loop(3, name))
    for other in {*NAMES} - {name}:
        assert not close(outcome, adaptive_loop(3, other), atol=1e-5)


# FedNova.


def in_effect(k: int) -> float:
    """a_k: how often a gradient of the client's first steps counts in its move."""
    velocity = a = 0.0
    for _ in batches(k, 1):
        velocity = 0.9 * velocity + 1
        a += velocity
    return a


def nova_loop(rounds: int) -> dict[str, Tensor]:
    x, p, a = start(), weights(), [in_effect(k) for k in range(CLIENTS)]
    for number in range(1, rounds + 1):
        before, state = deepcopy(x.state_dict()), x.state_dict()
        clients = [train(deepcopy(x), k, number).state_dict() for k in range(CLIENTS)]
        tau = sum(p[k] * a[k] for k in range(CLIENTS))
        for n in before:
            moves = [p[k] * (clients[k][n] - before[n]) / a[k] for k in range(CLIENTS)]
            state[n] = before[n] + tau * sum(moves)
        x.load_state_dict(state)
    return x.state_dict()


def test_fednovas_rounds_are_those_of_a_plain_loop() -> None:
    assert len({len(list(batches(k, 1))) for k in range(CLIENTS)}) > 1
    outcome, _ = play("fednova", settings("fednova"), 3)
    assert close(outcome, nova_loop(3))
    assert not close(outcome, member(fedavg(3)).state_dict(), atol=1e-4)


def counted(training: Training, **own: Any) -> float:
    """The steps of a client of 80 samples."""
    asked = Request(cpus=1, gpus=0)
    member = Client(id=0, role="r", training=training, num_samples=80, request=asked, **own)
    return steps(Update(client=member, tensors={}, stats={}, seconds=1.0, reused=False))


def test_a_proximal_step_counts_less_the_later_ones_follow() -> None:
    """a = sum_s (1 - lr mu)^s: what is left of each gradient after the steps behind it."""
    training = settings("fednova", momentum=0.0, proximal=0.5).classifier
    left = 1 - training.lr * 0.5
    assert counted(training) == pytest.approx(sum(left**s for s in range(training.steps(80))))


def test_a_rate_of_a_clients_own_counts_as_so_many_steps() -> None:
    training = settings("fednova").classifier
    thrice = counted(training, changes=(("lr", 3 * training.lr),))
    assert thrice == pytest.approx(3 * counted(training))


# MOON.


def moon_loop(rounds: int, mu: float, tau: float) -> dict[str, Tensor]:
    """Algorithm 1 as its box has it, with -log(e^a / (e^a + e^b)) written out."""
    model = start()
    last: dict[int, nn.Module] = {}
    for number in range(1, rounds + 1):
        states = []
        for k in range(CLIENTS):
            sent, previous, images = deepcopy(model).eval(), last.get(k), samples(k)[0]

            def further(net: nn.Module, _: Tensor, rows: Tensor) -> Tensor:
                if previous is None:  # noqa: B023
                    return torch.zeros(())
                z = net.features(images[rows]).flatten(1)  # noqa: B023
                with torch.no_grad():
                    towards = sent.features(images[rows]).flatten(1)  # noqa: B023
                    away = previous.features(images[rows]).flatten(1)  # noqa: B023
                a = (z * towards).sum(1) / (z.norm(dim=1) * towards.norm(dim=1))
                b = (z * away).sum(1) / (z.norm(dim=1) * away.norm(dim=1))
                return mu * -((a / tau).exp() / ((a / tau).exp() + (b / tau).exp())).log().mean()

            last[k] = train(deepcopy(model), k, number, further).eval()
            states.append(last[k].state_dict())
        model.load_state_dict(averaged(states, weights()))
    return model.state_dict()


def test_moons_rounds_are_those_of_the_plain_loop() -> None:
    outcome, _ = play("moon", settings("moon", mu=2.0), 3)
    assert close(outcome, moon_loop(3, mu=2.0, tau=0.5))
    assert not close(outcome, moon_loop(3, mu=0.0, tau=0.5), atol=1e-4)


def test_moon_without_its_term_and_in_its_first_round_is_fedavg() -> None:
    one, two = (fedavg(n, weighting="samples") for n in (1, 2))
    assert same_model(play("moon", settings("moon", mu=0.0), 2)[0], two)
    strong = settings("moon", mu=50.0, weighting="samples")
    assert same_model(play("moon", strong, 1)[0], one)
    assert not same_model(play("moon", strong, 2)[0], two)


def test_moons_first_round_is_found_where_fedavg_left_it(tmp_path: Path) -> None:
    play("fedavg", settings("fedavg"), 1, store=store(tmp_path, "fedavg"))
    heard: list[Event] = []
    play("moon", settings("moon"), store=store(tmp_path, "moon"), listener=heard.append)
    assert reused(heard) == [True] * CLIENTS + [False] * CLIENTS


# SCAFFOLD.

LOCAL = {**WITHOUT_NORM, "momentum": 0.0}


def scaffold_loop(who: list[list[int]], there: int = CLIENTS) -> dict[str, Tensor]:
    """Algorithm 1 with option II."""
    x = start(LOCAL)
    names = [name for name, _ in x.named_parameters()]
    c = {n: torch.zeros_like(p) for n, p in x.named_parameters()}
    own = [deepcopy(c) for _ in range(CLIENTS)]
    for number, chosen in enumerate(who, start=1):
        states, before = [], deepcopy(c)
        for k in chosen:
            y, tau = deepcopy(x), 0
            images, labels = samples(k)
            for rows in batches(k, number):
                y.zero_grad()
                F.cross_entropy(y(images[rows]), labels[rows]).backward()
                for n, p in y.named_parameters():
                    p.data -= SMALL["lr"] * (p.grad + before[n] - own[k][n])
                tau += 1
            states.append(y.state_dict())
            for n in names:
                moved = (x.state_dict()[n] - y.state_dict()[n]) / (tau * SMALL["lr"])
                change = moved - before[n]
                own[k][n] = own[k][n] + change
                c[n] = c[n] + change / there
        x.load_state_dict(averaged(states, [1 / len(chosen)] * len(chosen)))
    return x.state_dict()


def test_scaffolds_rounds_with_absent_clients_are_those_of_the_plain_loop() -> None:
    half = settings("scaffold", LOCAL, participation=0.5)
    clients, _ = federation("scaffold", half)
    who = [participants(clients, half, number) for number in (1, 2, 3, 4)]
    assert len({tuple(chosen) for chosen in who}) > 1
    outcome, _ = play("scaffold", half, 4)
    assert close(outcome, scaffold_loop(who))
    assert not close(outcome, scaffold_loop([who[0]] * 4), atol=1e-3)


def test_who_takes_part_in_no_round_shares_no_control() -> None:
    there = CLIENTS - 1
    outcome, _ = play("scaffold", settings("scaffold", LOCAL, newcomers=1), 3)
    assert close(outcome, scaffold_loop([list(range(there))] * 3, there))


def test_scaffold_refuses_a_run_that_may_drop_clients() -> None:
    with pytest.raises(
        UserError, match="on_client_failure must be stop: the control of a dropped client"
    ):
        play("scaffold", settings("scaffold", LOCAL), 2, on_failure="drop")


def test_weights_and_controls_are_sent_both_ways() -> None:
    _, clients = play("scaffold", settings("scaffold", LOCAL), 2)
    size = sum(4 * p.numel() for p in start(LOCAL).parameters())
    everyone = range(CLIENTS)
    assert clients.bytes_up == dict.fromkeys(everyone, 2 * 2 * size)
    # In the first round all know the start and the controls, which are 0.
    assert clients.bytes_down == dict.fromkeys(everyone, 2 * size)


def test_scaffolds_clients_train_in_cohorts() -> None:
    training = settings("scaffold", LOCAL).classifier
    assert conflict(training.recipe, task_input(training, shard(5, 5, 5))) is None


# FedDyn.


def feddyn_loop(
    who: list[list[int]], alphas: list[float], there: int = CLIENTS
) -> dict[str, Tensor]:
    """Algorithm 1 as the authors' code has it; returns the mean of the last round's weights."""
    model = start()
    s = deepcopy(model.state_dict())
    g = [{n: torch.zeros_like(p) for n, p in model.named_parameters()} for _ in range(CLIENTS)]
    mean = s
    for number, chosen in enumerate(who, start=1):
        states = []
        for k in chosen:
            local = start()
            local.load_state_dict(s)

            def further(net: nn.Module, *_: Tensor) -> Tensor:
                total = torch.zeros(())
                for n, w in net.named_parameters():
                    linear = (w * g[k][n]).sum()  # noqa: B023
                    total = total + linear + (w - s[n]).square().sum() / 2  # noqa: B023
                return alphas[k] * total  # noqa: B023

            states.append(train(local, k, number, further).state_dict())
            for n, w in local.named_parameters():
                g[k][n] += w.detach() - s[n]
        mean = averaged(states, [1 / len(chosen)] * len(chosen))
        s = {n: t.to(model.state_dict()[n].dtype) for n, t in mean.items()}
        for n, _ in model.named_parameters():
            s[n] = s[n] + sum(own[n] for own in g) / there
    return mean


def test_clients_that_were_absent_go_on_with_what_they_remember() -> None:
    half = settings("feddyn", alpha=0.2, participation=0.5)
    clients, _ = federation("feddyn", half)
    who = [participants(clients, half, number) for number in (1, 2, 3, 4)]
    assert len({tuple(chosen) for chosen in who}) > 1
    outcome, _ = play("feddyn", half, 4)
    assert close(outcome, feddyn_loop(who, [0.2] * CLIENTS))
    assert not close(outcome, feddyn_loop(who, [0.02] * CLIENTS), atol=1e-4)


def test_who_takes_part_in_no_round_shares_no_drift() -> None:
    there = CLIENTS - 1
    own = settings("feddyn", alpha=0.1, newcomers=1)
    expected = feddyn_loop([list(range(there))] * 3, [0.1] * CLIENTS, there)
    assert close(play("feddyn", own, 3)[0], expected)


@pytest.mark.parametrize("newcomers", [0, 1])
def test_alpha_can_be_adapted_to_the_samples(newcomers: int) -> None:
    there = CLIENTS - newcomers
    own = settings("feddyn", alpha=0.1, adapted=True, newcomers=newcomers)
    sizes = [client.num_samples for client in federation("feddyn", own)[0].members[:there]]
    alphas = [0.1 * sum(sizes) / there / size for size in sizes]
    expected = feddyn_loop([list(range(there))] * 2, alphas, there)
    assert close(play("feddyn", own, 2)[0], expected, atol=2e-6)


def test_feddyns_first_round_is_fedproxs() -> None:
    fedprox = settings("fedprox", proximal=0.3, weighting="uniform")
    own = settings("feddyn", alpha=0.3)
    assert same_model(play("feddyn", own, 1)[0], play("fedprox", fedprox, 1)[0])
    # It is not FedAvg from the second round on, however small alpha is.
    small = settings("feddyn", alpha=1e-9)
    one, three = (member(fedavg(n, weighting="uniform")).state_dict() for n in (1, 3))
    assert close(play("feddyn", small, 1)[0], one)
    assert not close(play("feddyn", small, 3)[0], three, atol=1e-3)


# The frame that they share.


@pytest.mark.parametrize("change", ["missing", "shape", "type"])
@pytest.mark.parametrize(("method", "prefix"), [("feddyn", "drift"), ("scaffold", "change")])
def test_what_is_uploaded_beside_the_weights_is_checked(
    method: str, prefix: str, change: str
) -> None:
    local = {"model": "cnn", "width": 0.3}
    config = settings(method, local)
    clients, server = federation(method, config)
    frame = Averaging(clients, server, config, Rounds(1))
    check, run_spec, member = (
        frame.checked_also(prefix),
        clients.run_spec,
        clients.members[CLIENTS - 1],
    )
    (model,) = frame.model.values()
    weights: dict[str, Tensor] = frame.sent()[member.training]
    beside = {f"{prefix}.{name}": p.detach().clone() for name, p in parameters_sent(model).items()}
    told = Update(client=member, tensors={**weights, **beside}, stats={}, seconds=1.0, reused=False)
    check(told, run_spec)
    name, tensor = beside.popitem()
    if change != "missing":
        beside[name] = torch.stack([tensor, tensor]) if change == "shape" else tensor.double()
    with pytest.raises(ValueError, match=rf"client {member.id} sent .*{prefix}"):
        check(replace(told, tensors={**weights, **beside}), run_spec)


@pytest.mark.parametrize(
    ("name", "local", "said"),
    [
        ("fednova", {"optimizer": "adam"}, "fednova"),
        ("fednova", {"patience": 2}, "fednova"),
        ("fednova", {"momentum": 0.9, "proximal": 0.1}, "fednova"),
        ("scaffold", {"momentum": 0.0, "optimizer": "adam"}, "optimizer"),
        ("scaffold", {"momentum": 0.9}, "momentum"),
        ("scaffold", {"momentum": 0.0, "proximal": 0.1}, "proximal"),
        ("feddyn", {"alpha": 0.0}, "alpha must be a positive number, got 0"),
        ("feddyn", {"proximal": 0.1}, r"proximal must be 0, got 0\.1"),
    ],
)
def test_training_that_would_not_be_the_methods_is_refused_by_name(
    name: str, local: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        settings(name, **local)
