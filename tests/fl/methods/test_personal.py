"""Methods whose clients keep models of their own, against plain loops, FedAvg and each other."""

import inspect
import tracemalloc
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from cluster.clients.store import Store
from fl.clients import Clients
from fl.errors import UserError
from fl.events import ClientEnd, Event, Events
from fl.executor import InProcess
from fl.federation import TaskInput, TaskOutput
from fl.methods import personal
from fl.methods.dynafed import MatchingConfig
from fl.methods.fedmd import train_on_public
from fl.methods.fedproto import feature_width
from fl.methods.personal import Dropping
from fl.methods.prototypes import participants
from fl.methods.registry import get_method
from fl.models.registry import register_model
from fl.seeding import seed_for
from fl.training.features import features_and_logits
from fl.training.task import conflict
from tests.fl.methods.personal_runs import (
    BATCH,
    CLIENTS,
    LOCAL,
    SPEC,
    alone,
    averaged,
    close,
    curve,
    fedavg,
    ledgers,
    memories,
    model_of,
    partition,
    plain,
    play,
    remembered,
    same,
    samples,
    settings,
    sizes,
    start,
    store,
    train,
)
from tests.fl.toy import PROBLEM, client, same_bits, shard, split, task_input

# Training alone.


def test_rounds_alone_are_those_of_a_plain_loop() -> None:
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
    assert outcome.epochs[-1].accuracy == sum(others) / 3


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


# pFedSD.


def pfedsd_loop(rounds: int, weight: float, tau: float) -> dict[str, Tensor]:
    model = start(settings("pfedsd"))
    last: dict[int, nn.Module] = {}
    for number in range(1, rounds + 1):
        for k in range(CLIENTS):
            teacher, images = last.get(k), samples(k)[0]

            def further(_: nn.Module, logits: Tensor, rows: Tensor) -> Tensor:
                if teacher is None:  # noqa: B023
                    return torch.zeros(())
                with torch.no_grad():
                    soft = (teacher(images[rows]) / tau).softmax(1)  # noqa: B023
                own = (logits / tau).softmax(1)
                return weight * tau**2 * (soft * (soft / own).log()).sum(1).mean()

            last[k] = train(deepcopy(model), k, number, further=further)
        model.load_state_dict(averaged([last[k].state_dict() for k in last], [1] * CLIENTS))
    return model.state_dict()


def test_pfedsds_rounds_are_those_of_a_plain_loop() -> None:
    outcome, _ = play("pfedsd", settings("pfedsd", weight=2.0, temperature=3.0))
    assert close(pfedsd_loop(3, 2.0, 3.0), model_of(outcome))
    assert not close(pfedsd_loop(3, 0.0, 3.0), model_of(outcome), atol=1e-4)


def test_clients_are_scored_by_their_own_last_models() -> None:
    outcome, clients = play("pfedsd", settings("pfedsd"), 1)
    assert curve(outcome)[0] == curve(alone()[0])[0]
    assert not same_bits(memories(clients)[0], memories(clients)[1])


def test_pfedsds_first_round_has_no_teacher() -> None:
    first, _ = play("pfedsd", settings("pfedsd", weight=9.0), 1)
    assert same_bits(model_of(first), model_of(fedavg(1, weighting="uniform")[0]))


# Ditto.

ATTACHMENT = 2.0


def ditto_loop(rounds: int) -> list[nn.Module]:
    """Each client's own model after so many rounds."""
    w = start(settings("ditto"))
    own = [deepcopy(w) for _ in range(CLIENTS)]
    for number in range(1, rounds + 1):
        sent = deepcopy(w.state_dict())
        for v in own:

            def near(v: nn.Module, *_: Tensor) -> Tensor:
                squares = [(p - sent[n]).square().sum() for n, p in v.named_parameters()]  # noqa: B023
                return ATTACHMENT / 2 * torch.stack(squares).sum()

            train(v, own.index(v), number, near)
        states = [train(deepcopy(w), k, number).state_dict() for k in range(CLIENTS)]
        w.load_state_dict(averaged(states, [1] * CLIENTS))
    return own


def test_dittos_own_models_are_those_of_a_plain_loop() -> None:
    _, clients = play("ditto", settings("ditto", attachment=ATTACHMENT))
    assert remembered(clients, ditto_loop(3))


# FedProto.

ATTRACTION = 3.0


def features(model: nn.Module, images: Tensor) -> Tensor:
    return features_and_logits(model, images)[0]


def fedproto_loop(rounds: int) -> list[nn.Module]:
    """Each client's own model after so many rounds."""
    own = [start(settings("fedproto")) for _ in range(CLIENTS)]
    prototypes: dict[int, Tensor] = {}
    for number in range(1, rounds + 1):
        for k, model in enumerate(own):
            images, labels = samples(k)

            def near(model: nn.Module, logits: Tensor, rows: Tensor) -> Tensor:
                z = features(model, images[rows])  # noqa: B023
                total = torch.zeros(())
                for i, label in enumerate(labels[rows].tolist()):  # noqa: B023
                    if label in prototypes:  # noqa: B023
                        total = total + (z[i] - prototypes[label]).square().mean()  # noqa: B023
                return ATTRACTION * total / len(rows)

            train(model, k, number, near)
        everyone: dict[int, list[Tensor]] = {}
        for k, model in enumerate(own):
            images, labels = samples(k)
            with torch.no_grad():
                for z, label in zip(features(model.eval(), images), labels.tolist(), strict=True):
                    everyone.setdefault(label, []).append(z)
        prototypes = {label: torch.stack(z).mean(0) for label, z in everyone.items()}
    return own


def test_fedprotos_rounds_are_those_of_a_plain_loop() -> None:
    _, clients = play("fedproto", settings("fedproto", attraction=ATTRACTION))
    assert remembered(clients, fedproto_loop(3), atol=5e-5)


def test_fedproto_sends_prototypes_alone() -> None:
    config = settings("fedproto")
    _, clients = play("fedproto", config, 2)
    size = 10 * feature_width(config.classifier, SPEC) * 4
    everyone = range(CLIENTS)
    assert clients.bytes_up == dict.fromkeys(everyone, 2 * (size + 10 * 8))
    assert clients.bytes_down == dict.fromkeys(everyone, size + 10 * 8)


# FedICT.

TAU, T, U = 3.0, 3.0, 7.0


def weighted_kl(teacher: Tensor, student: Tensor, weights: Tensor) -> Tensor:
    """tau^2 times the mean over samples of sum_c w_c t_c log(t_c / s_c)."""
    t, s = (teacher / TAU).softmax(1), (student / TAU).softmax(1)
    return TAU**2 * (weights * t * (t / s).log()).sum(1).mean()


@pytest.mark.parametrize("alignment", ["similarity", "balance"])
def test_fedicts_rounds_are_those_of_a_plain_loop(alignment: str) -> None:
    """Up n (4d + 4C + 8) bytes a round, 8C once; down 4nC from the second participation on."""
    config = settings("fedict", alignment=alignment)
    outcome, clients = play("fedict", config)
    own = [start(config) for _ in range(CLIENTS)]
    shared = start(config)
    answers: dict[int, Tensor] = {}
    counts = torch.stack([torch.bincount(samples(k)[1], minlength=10) for k in range(CLIENTS)])
    local, overall = counts / counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    for number in (1, 2, 3):
        for k, model in enumerate(own):
            told, shares = answers.get(k), 1 + local[k] / T

            def further(_: nn.Module, logits: Tensor, rows: Tensor) -> Tensor:
                if told is None:  # noqa: B023
                    return torch.zeros(())
                return 0.15 * weighted_kl(told[rows], logits, shares)  # noqa: B023

            train(model, k, number, further=further)
        sgd = optim.SGD(shared.classifier.parameters(), lr=LOCAL["lr"], momentum=0.9)
        for _ in range(2):
            for k, model in enumerate(own):
                images, labels = samples(k)
                with torch.no_grad():
                    features, teacher = model.features(images).flatten(1), model(images)
                if alignment == "similarity":
                    weights = 1 + F.cosine_similarity(overall, local[k], dim=0).expand(10)
                else:
                    weights = 1 + (overall - local[k]) / U
                for rows in torch.arange(len(labels)).split(BATCH):
                    logits = shared.classifier(features[rows])
                    loss = weighted_kl(teacher[rows], logits, weights)
                    loss = loss + 1.5 * F.cross_entropy(logits, labels[rows])
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
        with torch.no_grad():
            for k, model in enumerate(own):
                answers[k] = shared.classifier(model.features(samples(k)[0]).flatten(1))
    assert close(shared.state_dict(), model_of(outcome), atol=2e-4)
    assert remembered(clients, own, atol=2e-4)
    features = shared.classifier[0].in_features
    for k, n in enumerate(sizes()):
        assert clients.bytes_up[k] == 3 * n * (4 * features + 4 * 10 + 8) + 8 * 10
        assert clients.bytes_down[k] == 2 * 4 * n * 10


# FedMD.

PUBLIC = torch.rand(20, *SPEC.image_shape, generator=torch.Generator().manual_seed(1))
INPUTS = {"auxiliary": PUBLIC}


def learn(model: nn.Module, k: int, number: int, consensus: Tensor) -> None:
    sgd = optim.SGD(model.parameters(), lr=LOCAL["lr"], momentum=0.9)
    purpose = "public/order" if number == 1 else f"public/order/round {number}"
    order = torch.Generator().manual_seed(seed_for(0, purpose, k))
    for _ in range(2):
        for rows in torch.randperm(len(PUBLIC), generator=order).split(BATCH):
            loss = F.kl_div(
                model(PUBLIC[rows]).log_softmax(1),
                consensus[rows].softmax(1),
                reduction="batchmean",
            )
            sgd.zero_grad()
            loss.backward()
            sgd.step()


def test_fedmds_rounds_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    config = settings("fedmd", own_epochs=3)
    outcome, clients = play("fedmd", config, store=store(tmp_path), inputs=INPUTS)
    own = [start(config) for _ in range(CLIENTS)]
    for number in (1, 2, 3):
        for k, model in enumerate(own):
            if number == 1:
                train(model, k, number, epochs=3)
        with torch.no_grad():
            consensus = torch.stack([model(PUBLIC) for model in own]).mean(0)
        for k, model in enumerate(own):
            learn(model, k, number, consensus)
            train(model, k, number)
    assert remembered(clients, own, atol=1e-4)
    assert outcome.model is None
    each = 3 * len(PUBLIC) * 10 * 4
    assert clients.bytes_up == clients.bytes_down == dict.fromkeys(range(CLIENTS), each)


def test_clients_learn_from_public_images_in_cohorts() -> None:
    from dataclasses import replace

    inputs = task_input(settings("fedmd").classifier, shard(5, 5, 5))
    known = {"public": torch.rand(20, 1, 28, 28), "consensus": torch.randn(20, 3)}
    assert conflict(inspect.unwrap(train_on_public), replace(inputs, broadcast=known)) is None
    assert get_method("fedmd").auxiliary is not None


def test_who_takes_part_later_trains_alone_first_too() -> None:
    config = settings("fedmd", own_epochs=3, participation=0.5)
    heard: list[Event] = []
    _, clients = play("fedmd", config, listener=heard.append, inputs=INPUTS)
    who = [participants(clients, config, number) for number in (1, 2, 3)]
    assert not set(who[1] + who[2]) <= set(who[0])
    first: dict[int, int] = {}
    for event in heard:
        if isinstance(event, ClientEnd) and "epochs" in event.stats:
            first.setdefault(event.client, event.stats["epochs"])
    assert first == dict.fromkeys(first, 3)


class NormedHead(nn.Module):
    """Its BatchNorm normalises vectors: a batch of one sample has no variance."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 9, 9), nn.ReLU())
        self.classifier = nn.Sequential(
            nn.Linear(18, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(x).flatten(1))
        return found


@pytest.mark.parametrize(
    ("name", "changes"), [("fedict", {}), ("fedd2s", {"dropping": Dropping(layers=("F2",))})]
)
def test_a_head_trains_at_the_server_as_it_would_at_a_client(
    name: str, changes: dict[str, Any]
) -> None:
    """In train mode, and no batch is smaller than BatchNorm takes."""
    register_model("normed-head", NormedHead)
    config = settings(name, model="normed-head", batch_size=sizes()[0] - 1, **changes)
    outcome, _ = play(name, config, rounds=1)
    assert outcome.model is not None
    head = outcome.model.classifier[1]  # type: ignore[index]
    assert head.running_mean.any()
    assert not outcome.model.training


# What is left of a method without its part.

UNIFORM = {"weighting": "uniform"}
MEDIAN = {"aggregate": "median"}
FOLLOWING = {
    **{"model": "m1", "width": 1.0, "momentum": 0.9, "trajectory": 3},
    "matching": MatchingConfig(images_per_class=1, iterations=2, inner_steps=2),
}
"""DynaFed's settings, of which nothing counts in the rounds that it learns from."""


@pytest.mark.parametrize(
    ("name", "changes", "fedavgs"),
    [
        ("fedper", {"shared_layers": 6}, {}),
        ("fedrep+", {"dropping": Dropping(rate=3)}, {}),
        ("fedseq", {"clusters": CLIENTS}, {}),
        ("fedseq", {"clusters": CLIENTS, **MEDIAN}, {**UNIFORM, **MEDIAN}),
        ("pfedsd", {"weight": 0.0}, UNIFORM),
        ("dynafed", FOLLOWING, UNIFORM),
        ("ditto", {"attachment": ATTACHMENT}, UNIFORM),
    ],
)
def test_without_its_part_it_is_fedavg(
    name: str, changes: dict[str, Any], fedavgs: dict[str, str]
) -> None:
    """Where all layers are shared, clusters are of one client, the teacher does not count, the path
    is only followed; and what Ditto's clients send, always."""
    expected, theirs = fedavg(**fedavgs)
    found, ours = play(name, settings(name, **changes))
    assert same_bits(model_of(found), model_of(expected))
    assert ledgers(ours) == ledgers(theirs)
    if name in ("fedper", "fedrep+"):  # whose clients are tested as FedAvg's are here
        assert curve(found) == curve(expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedper", {"shared_layers": 0}),
        ("fedict", {"weight": 0.0, "server_weight": 0.0}),
        ("ditto", {"attachment": 0.0}),
    ],
)
def test_without_its_part_it_is_training_alone(name: str, changes: dict[str, Any]) -> None:
    expected, theirs = alone()
    found, ours = play(name, settings(name, **changes))
    assert same(memories(ours), memories(theirs))
    assert curve(found) == curve(expected)
    assert any(ours.bytes_up.values()) == (name != "fedper")


@pytest.mark.parametrize(
    ("name", "setting", "numbers", "allowed"),
    [
        ("fedper", "shared_layers", (-1, 7), "0 to 6"),
        ("fedict", "shared_layers", (0, 6), "1 to 5"),
        ("fedd2s", "fixed_layer", (0, 7), "1 to 6"),
    ],
)
def test_a_layer_that_the_model_has_not_is_refused_with_those_it_has(
    name: str, setting: str, numbers: tuple[int, ...], allowed: str
) -> None:
    """FedICT's features need a layer before them and one after."""
    for number in numbers:
        config = settings(name, **{setting: number})
        with pytest.raises(
            UserError, match=rf"{setting} must be in {allowed} \(C1, C2, C3, F1, F2"
        ):
            get_method(name).assign(config, CLIENTS, SPEC)
