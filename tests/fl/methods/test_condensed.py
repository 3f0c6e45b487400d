"""FedAF and FedDM: their servers against naive twins, and whole rounds of a tiny run."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from table2 import parameters
from torch import Tensor, nn, optim

from fl.clients import Clients
from fl.condensation.task import CondensationConfig, LocalCondensation, condense, send_mean_logits
from fl.errors import ClientFailed, UserError
from fl.exchange import prefixed
from fl.federation import TaskInput, TaskOutput, Update
from fl.fusion.fit import FitConfig
from fl.inputs import Inputs
from fl.methods import fedaf
from fl.methods.fedaf import (
    FedAFConfig,
    FedDMConfig,
    KnowledgeLoss,
    check_knowledge,
    condensed_data,
    mean_over_holders,
)
from fl.models.common import state_sent
from fl.rounds import Rounds
from fl.seeding import seed_for
from fl.server import Outcome
from fl.training.classifier import received_classifier, starting_classifier
from tests.fl.methods.tiny import WatchedServer, tiny_data, tiny_federation, tiny_partition
from tests.fl.toy import PROBLEM, client

SMALL = CondensationConfig(width=0.03, images_per_class=2, steps=2, batch_size=4, pixels="uint8")
FIT = FitConfig(epochs=3, lr=0.05, optimizer="sgd", batch_size=16, test_every=3)


def federation(config: Any) -> tuple[Clients, WatchedServer]:
    """Three clients, each of which lacks some classes."""
    data = tiny_data(train=120, test=40)
    return tiny_federation(config, num_clients=3, alpha=0.1, assign=fedaf.assign, data=data)


def play(config: Any, count: int = 1) -> tuple[Outcome, Clients, WatchedServer]:
    """A whole run of some rounds, and whom it was played with."""
    clients, server = federation(config)
    run = fedaf.run if isinstance(config, FedAFConfig) else fedaf.run_feddm
    return run(clients, server, config, rounds=Rounds(count)), clients, server


played = cache(play)
"""The same run is made once, for tests that only look at it."""


def weights(outcome: Outcome) -> Tensor:
    """All that the global model has, in a row."""
    return torch.cat([t.flatten().double() for t in outcome.model.state_dict().values()])


AF = FedAFConfig(condensation=SMALL, collaboration=0.5, knowledge=1.0, fusion=FIT)


def softmax(logits: Tensor, temperature: float) -> list[float]:
    powers = [math.exp(v / temperature) for v in logits.tolist()]
    return [p / sum(powers) for p in powers]


def test_the_servers_loss_is_cross_entropy_and_matching_class_by_class() -> None:
    stream = torch.Generator().manual_seed(0)
    images, labels = torch.rand(7, 6, generator=stream), torch.tensor([0, 3, 3, 0, 1, 3, 1])
    wanted = torch.rand(5, 5, generator=stream).softmax(1)
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    batch = {"images": images, "labels": labels, "soft_labels": wanted[labels]}
    logits = [model(image) for image in images]
    expected = 0.0
    for own, label in zip(logits, labels.tolist(), strict=True):
        expected -= math.log(softmax(own, 1.0)[label]) / 7
    for c in (0, 1, 3):  # class 2 and 4 are not in the batch
        own = [z for z, label in zip(logits, labels.tolist(), strict=True) if label == c]
        t, r = softmax(sum(own) / len(own), 2.0), wanted[c].tolist()
        forth = sum(a * math.log(a / b) for a, b in zip(r, t, strict=True))
        back = sum(b * math.log(b / a) for a, b in zip(r, t, strict=True))
        expected += 0.7 * (forth + back) / 2 / 3
    loss = KnowledgeLoss(weight=0.7, temperature=2.0)(model, batch)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_round_gathers_what_the_clients_condensed_with_the_holders_answers() -> None:
    outcome, clients, server = play(AF)
    _, data, fitted = server.fits["fusion"]
    assert len(fitted.epochs) == 1  # of three, as test_every says
    assert len(fitted.step_losses) == 3 * math.ceil(len(data["labels"]) / 16)
    held = [[c for c in range(10) if (labels_of(k) == c).any()] for k in range(3)]
    assert data["labels"].tolist() == [c for own in held for c in own for _ in range(2)]
    told = _told(clients, server)
    for row, label in zip(data["soft_labels"], data["labels"].tolist(), strict=True):
        holders = [k for k in range(3) if label in held[k]]
        mean = sum(told[k]["soft_labels"][label] for k in holders) / len(holders)
        torch.testing.assert_close(row, mean)
    assert any(len([k for k in range(3) if c in held[k]]) == 1 for c in range(10))
    assert torch.equal(outcome.synthetic["images"], data["images"])
    assert server.evaluate(outcome.model) == outcome.epochs[-1]


def labels_of(k: int) -> Tensor:
    data = tiny_data(train=120, test=40)
    return torch.from_numpy(data.train.labels[tiny_partition(data, 3, alpha=0.1).train[k]])


def _told(clients: Clients, server: WatchedServer) -> list[dict[str, Tensor]]:
    """What the clients tell about the model before the first round."""
    clients.round = 1
    return [dict(update.tensors) for update in clients.map(send_mean_logits)]


def test_images_of_a_class_without_soft_labels_are_their_clients_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tell_nothing(inputs: TaskInput) -> TaskOutput:
        rows = torch.zeros(10, 10)
        return TaskOutput(tensors={"mean_logits": rows, "soft_labels": rows.clone()})

    monkeypatch.setattr(fedaf, "send_mean_logits", tell_nothing)
    lean = replace(AF, collaboration=0.0)  # else what it learns is NaN itself, and refused as such
    with pytest.raises(ClientFailed, match=r"client 0 .*of the classes \[.*no soft labels"):
        play(lean)


def test_logits_and_soft_labels_are_of_the_same_classes() -> None:
    clients, server = play(AF)[1:]
    honest = clients.map(send_mean_logits)[0]
    check_knowledge(honest, server.run_spec)
    soft = honest.tensors["soft_labels"].clone()
    soft[soft.any(1).nonzero()[0]] = 0
    lying = replace(honest, tensors=dict(honest.tensors) | {"soft_labels": soft})
    with pytest.raises(ValueError, match="sent mean_logits of classes without soft labels"):
        check_knowledge(lying, server.run_spec)


def test_the_ledger_counts_what_the_paper_counts() -> None:
    outcome, clients, _ = played(AF, 2)
    model = sum(t.nbytes for t in state_sent(outcome.model).values())
    for k in range(3):
        classes = len(labels_of(k).unique())
        images, matrices = classes * 2 * 28 * 28, 2 * 10 * 10 * 4
        assert clients.bytes_up[k] == 2 * (images + matrices + 8 * classes)
        # The start is known; then the model goes down once a round, though both exchanges use it.
        assert clients.bytes_down[k] == model + 2 * 10 * 10 * 4
    assert model > 4 * parameters(outcome.model)  # with BatchNorm's statistics
    _, clients, _ = play(replace(AF, condensation=replace(SMALL, pixels="float")))
    classes = len(labels_of(0).unique())
    assert clients.bytes_up[0] == 4 * classes * 2 * 28 * 28 + 2 * 10 * 10 * 4 + 8 * classes


DM = FedDMConfig(condensation=SMALL, fusion=FIT)


def test_rounds_build_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[int, Tensor] = {}

    def remember(inputs: TaskInput) -> Any:
        model = received_classifier(inputs, inputs.record(LocalCondensation))
        before.setdefault(inputs.round, model.classifier.bias.detach())
        return condense(inputs)

    monkeypatch.setattr(LocalCondensation, "task", property(lambda record: remember))
    outcome, _, _ = play(DM, 2)
    assert len(outcome.epochs) == 2
    assert not torch.equal(before[1], before[2])


def test_clients_that_could_not_take_the_images_are_refused() -> None:
    run_spec = replace(federation(DM)[0].run_spec, inputs=Inputs((1, 4, 4)))
    with pytest.raises(UserError, match="convnet does not take images"):
        fedaf.assign(DM, 3, run_spec)


def test_a_round_trains_the_global_model_on_what_all_clients_condensed() -> None:
    """Against torch's own loop: cross-entropy on the images as sent, in the order of the seed."""
    outcome, _, server = played(DM)
    clients, _ = federation(DM)
    twin = starting_classifier(DM.local, server.run_spec)
    sent = clients.train(broadcast=prefixed("classifier", twin))
    images = torch.cat([u.tensors["images"].float() / 255 for u in sent])
    labels = torch.cat([u.tensors["classes"].repeat_interleave(2) for u in sent])
    sgd = optim.SGD(twin.parameters(), lr=FIT.lr, momentum=FIT.momentum)
    order = torch.Generator().manual_seed(seed_for(server.run_spec.seed, "fusion/order"))
    losses = []
    for _ in range(FIT.epochs):
        for rows in torch.randperm(len(labels), generator=order).split(FIT.batch_size):
            loss = F.cross_entropy(twin.train()(images[rows]), labels[rows])
            losses.append(loss.item())
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    assert server.fits["fusion"][2].step_losses == pytest.approx(losses, rel=1e-3)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(outcome.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(outcome.synthetic["images"], images)


def test_the_model_goes_down_and_nothing_but_images_and_their_classes_up() -> None:
    outcome, clients, _ = played(DM, 2)
    model = sum(t.nbytes for t in state_sent(outcome.model).values())
    for member, update in zip(clients.members, federation(DM)[0].train(), strict=True):
        classes = len(update.tensors["classes"])
        assert 0 < classes < 10
        assert clients.bytes_up[member.id] == 2 * (classes * 2 * 28 * 28 + 8 * classes)
        assert clients.bytes_down[member.id] == model  # in the second round


NEITHER = {"collaboration": 0.0, "knowledge": 0.0}


@pytest.mark.parametrize(
    ("whole", "without"),
    [
        (AF, [{"collaboration": 0.0}, {"knowledge": 0.0}, {"projections": 4}, NEITHER]),
        (DM, [{"rho": 0.0}, {"clip": None}]),
    ],
)
def test_each_setting_changes_what_is_learned(whole: Any, without: list[dict[str, Any]]) -> None:
    found = [weights(played(replace(whole, **own))[0]) for own in ({}, *without)]
    assert not any(torch.equal(one, other) for one, other in combinations(found, 2))


PAIRS = LocalCondensation(images_per_class=2)


def told(id: int = 0, **tensors: Tensor) -> Update:
    return Update(client=client(id, PAIRS), tensors=tensors, stats={}, seconds=0, reused=False)


def pairs(*classes: int) -> dict[str, Tensor]:
    return {"images": torch.rand(2 * len(classes), 1, 28, 28), "classes": torch.tensor(classes)}


def test_images_get_their_labels_and_bytes_become_pixels() -> None:
    one, other = pairs(0, 2), pairs(2)
    data = condensed_data([told(0, **one), told(1, **other)], PAIRS)
    assert data["labels"].tolist() == [0, 0, 2, 2, 2, 2]
    assert torch.equal(data["images"], torch.cat([one["images"], other["images"]]))
    as_bytes = LocalCondensation(images_per_class=2, pixels="uint8")
    sent = {**other, "images": (other["images"] * 255).to(torch.uint8)}
    data = condensed_data([told(0, **sent)], as_bytes)
    torch.testing.assert_close(data["images"] * 255, sent["images"].float())


def test_nothing_from_anybody_is_one_clear_error() -> None:
    nothing = {"images": torch.empty(0, 1, 28, 28), "classes": torch.empty(0, dtype=torch.int64)}
    with pytest.raises(ValueError, match="no client condensed any class"):
        condensed_data([told(0, **nothing)], PAIRS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": torch.tensor([2, 0])}, r"client 4 sent impossible classes \[2, 0\]"),
        ({"classes": torch.tensor([0, 0])}, "impossible classes"),
        ({"classes": torch.tensor([0, 3])}, "impossible classes"),
        ({"classes": torch.tensor([-1, 0])}, "impossible classes"),
        ({"classes": torch.tensor([0.0, 2.0])}, "impossible classes"),
        ({"images": torch.rand(3, 1, 28, 28)}, r"images as torch.float32 \(3, 1, 28, 28\)"),
        ({"images": torch.zeros(4, 1, 28, 28, dtype=torch.uint8)}, "images as torch.uint8"),
        ({"images": torch.full((4, 1, 28, 28), math.inf)}, "pixels above"),
    ],
)
def test_impossible_images_are_refused(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PAIRS.check_upload(told(4, **{**pairs(0, 2), **changes}), PROBLEM)


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(ValueError, match="client 4 sent no images"):
        PAIRS.check_upload(told(4, classes=torch.tensor([0])), PROBLEM)


def test_rows_are_averaged_over_those_who_have_the_class() -> None:
    one, other = torch.arange(9.0).view(3, 3), 10 * torch.ones(3, 3)
    one[1], other[1], other[2] = 0, 0, 0
    updates = [told(k, v=own, soft_labels=own) for k, own in enumerate((one, other))]
    mean = mean_over_holders(updates, "v", PROBLEM)
    assert mean[0].tolist() == [5.0, 5.5, 6.0]  # both
    assert mean[1].isnan().all()  # nobody
    assert mean[2].tolist() == [6.0, 7.0, 8.0]  # one client only


@pytest.mark.parametrize("sent", [torch.zeros(3, 2), torch.zeros(3, 3).double(), torch.ones(3, 3)])
def test_impossible_rows_are_refused(sent: Tensor) -> None:
    with pytest.raises(ValueError, match="client 4 sent v "):
        mean_over_holders([told(4, v=sent, soft_labels=torch.zeros(3, 3))], "v", PROBLEM)


@pytest.mark.parametrize("soft", [torch.zeros(3), torch.zeros(2, 3), torch.zeros(())])
def test_soft_labels_of_another_shape_are_refused_and_no_traceback(soft: Tensor) -> None:
    with pytest.raises(ValueError, match="client 4 sent soft_labels as"):
        check_knowledge(told(4, mean_logits=torch.zeros(3, 3), soft_labels=soft), PROBLEM)
