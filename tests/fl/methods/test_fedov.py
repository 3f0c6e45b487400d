"""FedOV against plain loops over a client's images, and the vote."""

from pathlib import Path

import torch
from torch import nn, optim

from fl.methods import fedov
from fl.methods.fedov import FedOVConfig
from fl.methods.prototypes import assign
from fl.methods.uploads import untrained_classifier
from fl.models import build_classifier
from fl.models.ensemble import Ensemble, OpenVote
from fl.models.saved import load_model, save_model
from fl.seeding import seed_for
from fl.training.unknown import DRAWS, LocalFedOV
from tests.fl.methods.tiny import tiny_data, tiny_federation, tiny_partition
from tests.fl.training.test_unknown import naive_destroyed

DATA = tiny_data(train=60, test=20)
CLIENTS, LR = 2, 0.01
LOCAL = LocalFedOV(model="cnn", width=0.3, epochs=1, lr=LR, attack_step=0.01)
CONFIG = FedOVConfig(classifier=LOCAL, num_large=CLIENTS)


def naive_training(model: nn.Module, k: int) -> nn.Module:
    own = tiny_partition(DATA, CLIENTS).train[k]
    images = torch.from_numpy(DATA.train.images[own]).float() / 255
    labels = torch.from_numpy(DATA.train.labels[own])
    order = torch.Generator().manual_seed(seed_for(0, "local/order", k))
    drawn = torch.Generator().manual_seed(seed_for(0, "local/latent", k))
    sgd, unknown = optim.SGD(model.parameters(), lr=LR, momentum=0.9), torch.tensor(10)
    for rows in torch.randperm(len(labels), generator=order).split(16):
        noise = torch.randn(len(rows), DRAWS, generator=drawn)
        losses = []
        for x, y, z in zip(images[rows], labels[rows], noise, strict=True):
            outlier = naive_destroyed(x, z)[None]
            moved = outlier.clone()
            for _ in range(5):
                moved = moved.detach().requires_grad_()
                p = model(moved).softmax(1)[0, unknown]
                (slope,) = torch.autograd.grad(-p.log(), moved)
                moved = moved + 0.01 * slope.sign()
            logits = model(x[None])[0]
            others = torch.cat([logits[:y], logits[y + 1 :]]).softmax(0)
            seen = (model(image)[0].softmax(0)[unknown] for image in (outlier, moved.detach()))
            losses.append(-sum(p.log() for p in (logits.softmax(0)[y], others[-1], *seen)))
        sgd.zero_grad()
        torch.stack(losses).mean().backward()
        sgd.step()
    return model.eval()


def test_clients_train_and_vote_as_plain_loops_do() -> None:
    clients, server = tiny_federation(CONFIG, assign=assign, num_clients=CLIENTS, data=DATA)
    outcome = fedov.run(clients, server, CONFIG)
    twins = [naive_training(untrained_classifier(LOCAL, server).train(), k) for k in range(CLIENTS)]
    for member, twin in zip(outcome.model.members, twins, strict=True):  # type: ignore[union-attr,arg-type]
        for name, tensor in twin.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    x = torch.from_numpy(DATA.test.images).float() / 255
    votes = sum(twin(x).softmax(1)[:, :10] for twin in twins)
    torch.testing.assert_close(outcome.model(x).exp(), votes, rtol=1e-4, atol=1e-5)  # type: ignore[misc]
    assert outcome.epochs == [server.evaluate(outcome.model)]  # type: ignore[arg-type]


def test_who_is_sure_of_the_unknown_has_no_say_and_as_many_vote_as_are_told_to(
    tmp_path: Path,
) -> None:
    each = torch.tensor([[[1.0, 2.0, -9.0]], [[4.0, 0.0, 9.0]], [[3.0, 0.0, 40.0]]])
    p = each.softmax(2)[:, 0]
    torch.testing.assert_close(OpenVote()(each).exp()[0], p[:, :2].sum(0))
    torch.testing.assert_close(OpenVote(1)(each).exp()[0], p[0, :2])
    torch.testing.assert_close(OpenVote(2)(each).exp()[0], p[:2, :2].sum(0))
    assert OpenVote()(each[2:]).isfinite().all()
    members = [build_classifier("mlp", (1, 4, 4), 11) for _ in range(2)]
    model, x = Ensemble(members, OpenVote(1)).eval(), torch.rand(3, 1, 4, 4)
    save_model(model, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model")(x), model(x))
