"""FedDM: its server against a naive twin, and rounds that build on each other."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, optim

from fl.condensation.task import LocalCondensation, condense
from fl.errors import UserError
from fl.exchange import prefixed
from fl.federation import TaskInput
from fl.methods.feddm import METHOD, FedDMConfig
from fl.models.state import state_sent
from fl.seeding import seed_for
from fl.training.classifier import starting_classifier
from tests.fl.methods.condensed import (
    FIT,
    SMALL,
    federation,
    play,
    weights,
)

DM = FedDMConfig(condensation=SMALL, fusion=FIT)


def test_rounds_build_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[int, Tensor] = {}

    def remember(inputs: TaskInput) -> Any:
        before.setdefault(inputs.round, inputs.broadcast["classifier.classifier.bias"])
        return condense(inputs)

    monkeypatch.setattr(LocalCondensation, "task", property(lambda record: remember))
    outcome, _, _ = play(DM, 2)
    assert len(outcome.epochs) == 2
    assert not torch.equal(before[1], before[2])


def test_clients_that_could_not_take_the_images_are_refused() -> None:
    run_spec = replace(federation(DM)[0].run_spec, image_shape=(1, 4, 4))
    with pytest.raises(UserError, match="convnet does not take images"):
        METHOD.assign(DM, 3, run_spec)


def test_a_round_trains_the_global_model_on_what_all_clients_condensed() -> None:
    """Against torch's own loop: cross-entropy on the images as sent, in the order of the seed."""
    outcome, _, server = play(DM)
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
    outcome, clients, _ = play(DM)
    model = sum(t.nbytes for t in state_sent(outcome.model).values())
    for client, update in zip(clients.members, federation(DM)[0].train(), strict=True):
        classes = len(update.tensors["classes"])
        assert 0 < classes < 10
        assert clients.bytes_up[client.id] == classes * 2 * 28 * 28 + 8 * classes
        assert clients.bytes_down[client.id] == model


def test_radius_and_clip_change_what_is_learned() -> None:
    whole = weights(play(DM)[0])
    others = [replace(DM, rho=0.0), replace(DM, clip=None)]
    found = [whole, *(weights(play(config)[0]) for config in others)]
    for k, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:k])
