"""FedDF against a naive twin: each student by itself, teachers asked for every batch."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn, optim

from fl.exchange import prefixed
from fl.federation import Update
from fl.fusion.fit import FitConfig
from fl.methods import feddf
from fl.methods.feddf import FedDFConfig
from fl.methods.prototypes import all_classifiers, assign, prototypes
from fl.models.ensemble import Ensemble
from fl.rounds import Rounds
from fl.seeding import in_round, seed_for
from fl.training.classifier import ClassifierConfig
from tests.fl.methods.test_prototypes import averages
from tests.fl.methods.tiny import WatchedServer, tiny_data, tiny_federation

TWO = FedDFConfig(
    classifier=ClassifierConfig(model="cnn", width=0.3, epochs=2),
    small_width=0.5,
    distil=FitConfig(epochs=2, lr=1e-3, batch_size=16, schedule="cosine", clip=0.5),
)


def auxiliary(count: int, train: int = 240) -> Tensor:
    """Unlabelled images that no client has."""
    images = tiny_data(train=train + count).train.images[train:]
    return torch.from_numpy(images).float() / 255


def test_agrees_with_students_that_train_alone() -> None:
    clients, server = tiny_federation(TWO, assign=assign, num_clients=4)
    x = auxiliary(40)
    outcome = feddf.run(clients, server, TWO, auxiliary=x, rounds=Rounds(1))
    students, losses = naive_feddf(clients.train(), server, TWO, x)
    for member, twin in zip(outcome.model.members, students, strict=True):  # type: ignore[arg-type]
        for name, tensor in twin.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)
    _, data, fitted = server.fits["fusion"]
    assert fitted.step_losses == pytest.approx(losses, rel=1e-4)
    assert set(data) == {"images", "teacher_logits"}  # no labels
    assert len(outcome.epochs) == 2
    assert server.evaluate(outcome.model) == outcome.epochs[-1]
    assert outcome.start == server.evaluate(averages(clients.train(), server))


def naive_feddf(
    updates: list[Update], server: WatchedServer, config: FedDFConfig, x: Tensor, number: int = 1
) -> tuple[list[nn.Module], list[float]]:
    """Softmax by hand, a cosine by hand, gradients cut by hand; one student after another."""
    teachers = all_classifiers(updates, server).members
    purpose = f"{in_round('fusion', number)}/order"
    students, totals = [], [0.0] * (config.distil.epochs * math.ceil(len(x) / 16))
    for average in averages(updates, server).members:
        student = copy.deepcopy(average).train()
        optimizer = optim.Adam(student.parameters(), lr=config.distil.lr)
        order = torch.Generator().manual_seed(seed_for(server.run_spec.seed, purpose))
        step = 0
        for _ in range(config.distil.epochs):
            for rows in torch.randperm(len(x), generator=order).split(16):
                passed = step / len(totals)
                rate = config.distil.lr * 0.5 * (1 + math.cos(math.pi * passed))
                optimizer.param_groups[0]["lr"] = rate
                q = torch.softmax(sum(t(x[rows]) for t in teachers) / len(teachers), 1)
                p = torch.softmax(student(x[rows]), 1)
                loss = (q * (q.log() - p.log())).sum() / len(rows)
                optimizer.zero_grad()
                loss.backward()
                norm = math.sqrt(sum((p.grad**2).sum().item() for p in student.parameters()))
                for parameter in student.parameters():
                    parameter.grad *= min(1.0, config.distil.clip / norm)
                optimizer.step()
                totals[step] += loss.item()
                step += 1
        students.append(student.eval())
    return students, totals


def test_in_a_second_round_clients_go_on_from_their_prototypes_student() -> None:
    clients, server = tiny_federation(TWO, assign=assign, num_clients=4)
    x = auxiliary(40)
    outcome = feddf.run(clients, server, TWO, auxiliary=x, rounds=Rounds(2))

    clients, server = tiny_federation(TWO, assign=assign, num_clients=4)
    first = feddf.run(clients, server, TWO, auxiliary=x, rounds=Rounds(1)).model
    assert isinstance(first, Ensemble)
    clients.round = 2
    trainings = prototypes(clients.members)
    sent = {
        c.id: prefixed("classifier", first.members[trainings.index(c.training)])
        for c in clients.members
    }
    updates = clients.train(payloads=sent)
    students, _ = naive_feddf(updates, server, TWO, x, number=2)
    for member, twin in zip(outcome.model.members, students, strict=True):  # type: ignore[arg-type]
        for name, tensor in twin.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)
    assert [r["accuracy"] for r in outcome.figures["per_round"]] == [
        e.accuracy for e in outcome.epochs
    ]
    assert server.evaluate(outcome.model) == outcome.epochs[1]
