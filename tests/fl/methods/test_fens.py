"""FENS against plain loops over the clients' held out samples, its ledger, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.clients import Clients
from fl.data.shard import Shard
from fl.exchange import num_bytes, prefixed
from fl.federation import RunSpec, TaskInput, Update
from fl.methods import fens
from fl.methods.fens import (
    AggregatorConfig,
    FENSConfig,
    LocalFENS,
    ask_members,
    check_aggregator,
    train_aggregator,
)
from fl.methods.prototypes import all_classifiers
from fl.models.ensemble import Aggregator, Ensemble
from fl.models.registry import build_classifier
from fl.models.saved import load_model, save_model
from fl.rounds import Rounds
from fl.seeding import seed_for
from fl.training.classifier import ClassifierConfig, held_out_rows
from tests.fl.methods.tiny import WatchedServer, tiny_data, tiny_federation, tiny_partition
from tests.fl.toy import client, task_input

SPEC = RunSpec.of_images((1, 8, 8), num_classes=3, seed=0)
OWN = LocalFENS(
    model="mlp",
    width=0.1,
    validation=0.3,
    peers=(("mlp", 0.1), ("cnn", 0.2), ("mlp", 0.1)),
    aggregator=AggregatorConfig(),
)


def given(round: int, **messages: dict[str, Tensor]) -> TaskInput:
    stream = torch.Generator().manual_seed(0)
    images = torch.rand(10, 1, 8, 8, generator=stream)
    own = task_input(OWN, Shard(images, torch.arange(10) % 3, 3), id=1, run_spec=SPEC)
    return replace(own, round=round, **messages)


def test_members_are_asked_about_the_samples_that_the_first_round_held_out() -> None:
    small, large = (
        build_classifier("cnn", (1, 8, 8), 3, width=0.2),
        build_classifier("mlp", (1, 8, 8), 3, width=0.1),
    )
    sent = {**prefixed("member.1", small), **prefixed("member.2", large)}
    found = ask_members(given(2, broadcast=sent)).tensors
    rows, left = held_out_rows(given(1), OWN)
    assert len(rows) == 3
    assert sorted([*rows.tolist(), *left.tolist()]) == list(range(10))
    assert torch.equal(found["labels"], given(1).shard.labels[rows])
    images = given(1).shard.images[rows]
    expected = [torch.zeros(3, 3), small.eval()(images), large.eval()(images)]
    torch.testing.assert_close(found["logits"], torch.stack(expected, 1))


def test_an_aggregator_that_none_was_made_of_is_refused() -> None:
    sent = prefixed("aggregator", OWN.new_aggregator(SPEC))
    memory = {"logits": torch.ones(4, 3, 3), "labels": torch.tensor([0, 0, 1, 2])}
    told = train_aggregator(given(3, broadcast=sent, remembered=memory)).tensors
    expected = OWN.new_aggregator(SPEC).state_dict()

    def check(tensors: dict[str, Tensor]) -> None:
        largest = {n: float(t.abs().max()) for n, t in tensors.items()}
        update = Update(
            client=client(1, OWN),
            tensors=tensors,
            stats={},
            seconds=0.0,
            reused=False,
            largest=largest,
        )
        check_aggregator(expected, update, SPEC)

    check(told)
    assert any(not torch.equal(t, sent[n]) for n, t in told.items())
    with pytest.raises(ValueError, match="client 1 sent other tensors than aggregator has"):
        check({n: t for n, t in told.items() if "outer" in n})
    with pytest.raises(
        ValueError, match=r"aggregator.outer.bias as torch.float32 \(4,\), expected"
    ):
        check({**told, "aggregator.outer.bias": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"sent aggregator.outer.bias with values up to .*it lies"):
        check({**told, "aggregator.outer.bias": torch.full((3,), 1e4)})


CLIENTS, ROUNDS, DATA = 3, 4, tiny_data(train=120, test=40)
LOCAL = ClassifierConfig(model="convnet", width=0.04, epochs=2, lr=0.05, validation=0.2)
HOW = AggregatorConfig(steps=2, lr=0.1, server_lr=0.05, batch_size=5)
CONFIG = FENSConfig(classifier=LOCAL, small_width=0.3, num_large=2, aggregator=HOW)
TEST = torch.from_numpy(DATA.test.images).float() / 255


def federation(config: FENSConfig = CONFIG) -> tuple[Clients, WatchedServer]:
    return tiny_federation(config, assign=fens.assign, num_clients=CLIENTS, data=DATA)


def naive(members: list[nn.Module], hidden: int) -> dict[str, Tensor]:
    """The aggregator after all rounds but the first, from the clients' classifiers."""
    torch.manual_seed(seed_for(0, "start/aggregator"))
    inner = nn.Linear(CLIENTS * 10, CLIENTS * hidden) if hidden else None
    lam = {"by_class": torch.ones(CLIENTS, 10)}
    if inner:
        lam = {"inner.weight": inner.weight.data, "inner.bias": inner.bias.data}
        lam |= {"outer.weight": torch.zeros(10, CLIENTS * hidden), "outer.bias": torch.zeros(10)}
    m, v = ({n: torch.zeros_like(t) for n, t in lam.items()} for _ in range(2))

    def answer(own: dict[str, Tensor], z: Tensor) -> Tensor:
        """Of logits (n, clients, classes)."""
        if not hidden:
            return sum(own["by_class"][k] * z[:, k] for k in range(CLIENTS)) / CLIENTS
        units = torch.relu(z.flatten(1) @ own["inner.weight"].T + own["inner.bias"])
        return z.mean(1) + units @ own["outer.weight"].T + own["outer.bias"]

    shards = tiny_partition(DATA, CLIENTS).train
    for number in range(2, ROUNDS + 1):
        moves = {n: torch.zeros_like(t) for n, t in lam.items()}
        for k, own in enumerate(shards):
            held = torch.Generator().manual_seed(seed_for(0, "local/validation", k))
            rows = own[
                torch.randperm(len(own), generator=held)[: round(len(own) / 5)].sort().values
            ]
            images = torch.from_numpy(DATA.train.images[rows]).float() / 255
            labels = torch.from_numpy(DATA.train.labels[rows])
            with torch.no_grad():
                z = torch.stack([member(images) for member in members], 1)
            order = f"aggregator/order/round {number}"
            stream = torch.Generator().manual_seed(seed_for(0, order, k))
            local = {n: t.clone().requires_grad_() for n, t in lam.items()}
            for _ in range(2):
                batch = torch.randperm(len(rows), generator=stream)[:5]
                F.cross_entropy(answer(local, z[batch]), labels[batch]).backward()
                local = {n: (t - 0.1 * t.grad).detach().requires_grad_() for n, t in local.items()}
            share = len(own) / sum(map(len, shards))
            moves = {n: moves[n] + share * (local[n].detach() - lam[n]) for n in lam}
        for n, d in moves.items():
            m[n], v[n] = 0.9 * m[n] + 0.1 * d, 0.99 * v[n] + 0.01 * d**2
            lam[n] = lam[n] + 0.05 * m[n] / (v[n].sqrt() + 1e-3)
    return lam


@pytest.mark.parametrize("hidden", [2, 0])
def test_the_aggregator_is_that_of_a_plain_loop(hidden: int) -> None:
    config = replace(CONFIG, aggregator=replace(HOW, hidden=hidden))
    clients, server = federation(config)
    outcome = fens.run(clients, server, config, rounds=Rounds(ROUNDS))
    members = all_classifiers(federation(config)[0].train(), server)
    found = dict(outcome.model.combine.named_parameters())  # type: ignore[union-attr]
    for name, tensor in naive([*members.members], hidden).items():
        torch.testing.assert_close(found[name].data, tensor, rtol=1e-5, atol=1e-5)
    one = fens.run(*federation(config), config, rounds=Rounds(1))
    torch.testing.assert_close(one.model(TEST), members(TEST))  # type: ignore[misc]
    assert one.epochs == outcome.epochs[:1]


@pytest.mark.parametrize("missing", [False, True])
def test_all_members_there_are_are_sent_once_and_then_the_aggregator_alone(missing: bool) -> None:
    clients, server = federation()
    clients.dropped.update({1: "gone"} if missing else {})
    model = fens.run(clients, server, CONFIG, rounds=Rounds(ROUNDS)).model
    own = {c.id: c.training.upload_bytes(clients.run_spec) for c in clients.members}
    own = {k: size for k, size in own.items() if k not in clients.dropped}
    aggregator = (ROUNDS - 1) * num_bytes(prefixed("aggregator", model.combine))  # type: ignore[union-attr,arg-type]
    for k, size in own.items():
        assert clients.bytes_up[k] == size + aggregator
        assert clients.bytes_down[k] == sum(own.values()) + aggregator
    before = model(TEST)  # type: ignore[misc]
    for parameter in model.members[1].parameters():  # type: ignore[union-attr]
        parameter.add_(1.0)
    assert torch.equal(model(TEST), before) == missing  # type: ignore[misc]


def test_the_model_is_saved_with_its_aggregator(tmp_path: Path) -> None:
    members = [build_classifier("mlp", (1, 4, 4), 10) for _ in range(2)]
    model, x = Ensemble(members, Aggregator(2, 10, 1)).eval(), torch.rand(3, 1, 4, 4)
    nn.init.ones_(model.combine.outer.weight)  # type: ignore[union-attr]
    save_model(model, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model")(x), model(x))
