"""FedOV against plain loops over a client's images and their pixels, and the vote."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim

from fl.errors import UserError
from fl.federation import RunSpec
from fl.inputs import Inputs, NotImages
from fl.methods import fedov
from fl.methods.fedov import DRAWS, FedOVConfig, LocalFedOV, answers, destroyed
from fl.methods.prototypes import assign
from fl.methods.uploads import untrained_classifier
from fl.models.ensemble import Ensemble, OpenVote
from fl.models.registry import build_classifier
from fl.models.saved import load_model, save_model
from fl.seeding import seed_for
from fl.training.stacked import conflict
from tests.fl.methods.tiny import tiny_data, tiny_federation, tiny_partition
from tests.fl.training.cohorts import inputs

SPEC = RunSpec.of_images((1, 12, 12), num_classes=3, seed=0)


@pytest.mark.parametrize("model", ["cnn", "convnet"])
def test_clients_train_as_one_but_where_batchnorm_sees_known_and_unknown_together(
    model: str,
) -> None:
    training = LocalFedOV(model=model, width=0.1, batch_size=8)
    recipe = training.recipe(inputs(training, 20, 0, SPEC))
    assert (conflict(recipe) is None) == (model == "cnn")


def test_batchnorms_statistics_are_of_one_pass_and_none_is_of_moved_outliers() -> None:
    model, parts = (
        build_classifier("convnet", (1, 12, 12), 4, width=0.1),
        torch.rand(2, 8, 1, 12, 12),
    )
    norm, seen = next(m for m in model.modules() if hasattr(m, "running_mean")), list[Tensor]()
    norm.register_forward_pre_hook(lambda module, x: seen.append(x[0]) if module.training else None)
    LocalFedOV().attacked(model.train(), parts[0])
    assert model.training
    assert not seen
    answers(model, *parts)
    assert [len(x) for x in seen] == [16]


def test_an_attack_makes_the_unknown_less_likely() -> None:
    model, images = build_classifier("mlp", (1, 12, 12), 4), torch.rand(8, 1, 12, 12)
    moved = LocalFedOV(attack_step=0.01).attacked(model, images)
    before, after = (model(x).log_softmax(1)[:, -1] for x in (images, moved))
    assert bool((after < before).all())
    assert float((moved - images).abs().max()) <= 0.05 + 1e-6


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(UserError, match="fedov cannot use validation"):
        LocalFedOV(validation=0.1)
    with pytest.raises(NotImages):
        LocalFedOV(model="mlp").check(RunSpec(inputs=Inputs((6,), "floats"), num_classes=3, seed=0))


CROP, BLUR, ERASE, CUT, TURN = 0, 1, 2, (3, 5), (4, 6)


def naive_destroyed(x: Tensor, noise: Tensor) -> Tensor:
    """One image (C, H, W), pixel by pixel."""
    u = [math.modf(64 * float(z))[0] % 1 for z in noise]
    kind, (height, width), found = int(7 * u[0]), x.shape[1:], x.clone()
    for i in range(height):
        for j in range(width):
            if kind == CROP:
                area, ratio = 0.1 + 0.23 * u[1], 0.75 + 7 / 12 * u[2]
                tall, wide = math.sqrt(area * ratio), math.sqrt(area / ratio)
                row = int(u[3] * (height - tall * height) + (i + 0.5) * tall)
                found[:, i, j] = x[:, row, int(u[4] * (width - wide * width) + (j + 0.5) * wide)]
            if kind == BLUR:
                far, near = 1 + int(4 * u[1]), int(3 * u[2])
                up, aside = (far, near) if u[3] < 0.5 else (near, far)
                rows = [min(abs(r), 2 * height - 2 - r) for r in range(i - up, i + up + 1)]
                own = [min(abs(c), 2 * width - 2 - c) for c in range(j - aside, j + aside + 1)]
                found[:, i, j] = x[:, rows][:, :, own].mean((1, 2))
            if kind == ERASE:
                area, ratio = (2 + u[1]) / 6, 0.3 + 3 * u[2]
                tall = min(1, math.sqrt(area * ratio))
                wide = min(1, area / tall)
                top, left = u[3] * (1 - tall) * height, u[4] * (1 - wide) * width
                if top <= i < top + tall * height and left <= j < left + wide * width:
                    found[:, i, j] = 0
    half = height // 2  # of a square
    if kind in CUT:
        x, into = (x, found) if u[4] < 0.5 else (x.mT, found.mT)
        to = int(half * u[1])
        allowed = [p for p in range(half) if abs(p - to) >= half // 2]
        taken = allowed[int(len(allowed) * u[2])]
        if u[3] < 1 / 3:
            into[:, :half], into[:, half:] = x[:, half:], x[:, :half]
        else:
            into[:, to : to + half] = x[:, taken : taken + half]
    if kind in TURN:
        top = int(half * u[1])
        for left in (0, half):
            square = x[:, top : top + half, left : left + half]
            found[:, top : top + half, left : left + half] = square.rot90(1 + int(3 * u[2]), (1, 2))
    return found


def test_an_outlier_is_that_of_plain_loops_over_its_pixels() -> None:
    stream = torch.Generator().manual_seed(1)
    images = torch.rand(60, 2, 12, 12, generator=stream)
    noise = torch.randn(60, DRAWS, generator=stream)
    found = destroyed(images, noise)
    assert {int(7 * float(u)) for u in (64 * noise[:, 0]) % 1} == set(range(7))
    for x, z, own in zip(images, noise, found, strict=True):
        torch.testing.assert_close(own, naive_destroyed(x, z), rtol=1e-5, atol=1e-5)
    alone = [destroyed(images[k : k + 1], noise[k : k + 1]) for k in range(len(images))]
    assert torch.equal(torch.cat(alone), found)


def test_sides_may_be_odd_and_differ() -> None:
    stream = torch.Generator().manual_seed(2)
    images = torch.rand(60, 1, 9, 14, generator=stream)
    found = destroyed(images, torch.randn(60, DRAWS, generator=stream))
    assert found.shape == images.shape
    assert float(found.min()) >= 0
    assert not any(torch.equal(*pair) for pair in zip(found, images, strict=True))


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
