"""DENSE and Co-Boosting against naive twins of what they do in an epoch."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import RunSpec
from fl.fusion.inversion import (
    BatchNormDistance,
    DistillationConfig,
    InversionConfig,
    Pool,
    crop_and_flip,
)
from fl.methods import co_boosting, dense
from fl.methods.co_boosting import CoBoostingConfig, hard_sample_loss, perturbed, reweigh
from fl.methods.dense import DenseConfig, generator_loss
from fl.methods.method import Method
from fl.methods.prototypes import all_classifiers
from fl.models.ensemble import Ensemble
from fl.training.classifier import ClassifierConfig
from tests.fl.methods.tiny import tiny_federation
from tests.fl.toy import Told, into, named

CLASSIFIER = ClassifierConfig(model="cnn", width=0.3, epochs=1)
INVERSION = InversionConfig(batch_size=8, steps=2, width=0.05, latent=8)


class Linear(nn.Module):
    """A classifier of 4x4 images in three classes, with normalised pixels."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.norm = nn.BatchNorm2d(1)
            self.linear = nn.Linear(16, 3)
        self.norm.running_mean += 0.3

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.norm(images).flatten(1))


def ensemble() -> Ensemble:
    return Ensemble([Linear(1), Linear(2)]).eval().requires_grad_(False)


def images(count: int = 5) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.rand(count, 1, 4, 4, generator=stream), torch.arange(count) % 3


def probabilities(logits: Tensor, temperature: float = 1.0) -> list[float]:
    powers = [math.exp(v / temperature) for v in logits.tolist()]
    return [p / sum(powers) for p in powers]


def kl(teacher: list[float], student: list[float]) -> float:
    return sum(q * math.log(q / p) for q, p in zip(teacher, student, strict=True))


def weights(model: nn.Module) -> Tensor:
    """All of a model's weights in a row."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


DENSE = DenseConfig(
    classifier=CLASSIFIER,
    small_width=0.5,
    inversion=INVERSION,
    kd=DistillationConfig(epochs=3, batch_size=8),
)


@pytest.mark.parametrize("shown", [True, False])
def test_the_generators_loss_is_the_three_terms_sample_by_sample(shown: bool) -> None:
    """Of views of the images, or of the images as they are."""
    teacher, student = ensemble(), Linear(3)
    config = replace(DENSE, ce=0.7, bn=0.5, adv=2.0, views=shown)
    x, y = images()
    with BatchNormDistance(teacher.members).watching() as statistics:
        loss = generator_loss(
            teacher, student, statistics, config, torch.Generator().manual_seed(9)
        )(x, y)
    views = crop_and_flip(x, torch.Generator().manual_seed(9)) if shown else x
    expected = 0.0
    for view, label in zip(views, y.tolist(), strict=True):
        both = [member(view[None])[0] for member in teacher.members]
        mean = (both[0] + both[1]) / 2
        q, p = probabilities(mean), probabilities(student(view[None])[0])
        expected -= 0.7 * math.log(q[label]) / len(y)
        if p.index(max(p)) != q.index(max(q)):
            expected -= 2.0 * kl(q, p) / len(y)
    mean, variance = views.mean().item(), views.var(correction=0).item()
    expected += 0.5 * (abs(mean - 0.3) + abs(variance - 1.0))  # the same for both members
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_layers_that_keep_no_statistics_are_no_term_of_the_loss() -> None:
    def loss(bn: float) -> torch.Tensor:
        teacher, stream = ensemble(), torch.Generator().manual_seed(9)
        for member in teacher.members:
            member.norm = nn.BatchNorm2d(1, track_running_stats=False)
        with BatchNormDistance(teacher.members).watching() as statistics:
            make = generator_loss(teacher, Linear(3), statistics, replace(DENSE, bn=bn), stream)
            return make(*images())

    assert torch.equal(loss(bn=1.0), loss(bn=0.0))


def test_images_that_the_generator_cannot_make_are_refused_before_anything_starts() -> None:
    spec = RunSpec.of_images((1, 30, 28), num_classes=10, seed=0)
    with pytest.raises(UserError, match="sides divisible by 4"):
        dense.assign(DENSE, 4, spec)


BOOSTING = CoBoostingConfig(
    classifier=CLASSIFIER,
    small_width=0.5,
    inversion=INVERSION,
    kd=replace(CoBoostingConfig().kd, epochs=3, batch_size=8),
)


def test_the_generators_loss_weighs_hard_samples_and_competes_unmasked() -> None:
    teacher, student, config = ensemble(), Linear(3).eval(), replace(BOOSTING, ce=0.7, adv=2.0)
    x, y = images()
    expected = 0.0
    for image, label in zip(x, y.tolist(), strict=True):
        mean = sum(member(image[None])[0] for member in teacher.members) / 2
        q = probabilities(mean)
        expected += 0.7 * (1 - q[label]) * -math.log(q[label]) / len(y)
        apart = kl(probabilities(mean, 3.0), probabilities(student(image[None])[0], 3.0))
        expected -= 2.0 * 9.0 * apart / len(y)
    assert hard_sample_loss(teacher, student, config)(x, y).item() == pytest.approx(
        expected, rel=1e-4
    )


def test_the_probability_that_weighs_a_sample_is_not_trained() -> None:
    teacher, config = ensemble(), replace(BOOSTING, adv=0.0)
    x, y = images()
    x.requires_grad_()
    hard_sample_loss(teacher, Linear(3), config)(x, y).backward()
    twin = x.detach().clone().requires_grad_()
    log_p = teacher(twin).log_softmax(1)[range(5), y]
    weights = [1 - p for p in log_p.exp().tolist()]
    (sum(-w * lp for w, lp in zip(weights, log_p, strict=True)) / 5).backward()
    torch.testing.assert_close(x.grad, twin.grad)


def test_weights_step_against_the_gradient_batch_by_batch_and_stay_in_bounds() -> None:
    teacher, twin_weights = ensemble(), torch.tensor([0.5, 0.5])
    config = replace(BOOSTING, weight_step=0.3, weight_decay=0.5)
    x, y = images(20)
    pool = Pool(seed=0)
    pool.add(images=x, labels=y, member_logits=teacher.each(x).transpose(0, 1))
    reweigh(teacher, pool, config, epoch=3)
    for batch in pool.batches("weights/order", 3, 8):

        def cross_entropy(w: Tensor, batch: dict[str, Tensor] = batch) -> float:
            total = 0.0
            for image, label in zip(batch["images"], batch["labels"].tolist(), strict=True):
                each = [member(image[None])[0] for member in teacher.members]
                total -= math.log(probabilities((w[0] * each[0] + w[1] * each[1]) / w.sum())[label])
            return total

        rises = [
            cross_entropy(twin_weights + torch.eye(2)[k] * 1e-3)
            > cross_entropy(twin_weights - torch.eye(2)[k] * 1e-3)
            for k in range(2)
        ]
        signs = torch.tensor([1.0 if r else -1.0 for r in rises])
        twin_weights = (twin_weights - 0.3 * 0.25 * signs).clamp(0, 1)
    torch.testing.assert_close(teacher.weights, twin_weights)
    assert not torch.equal(twin_weights, torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("weight", [0.03, 0.05, 0.07])
def test_a_member_that_is_left_alone_keeps_some_weight(weight: float) -> None:
    """Its gradient is 0, but for rounding."""
    teacher, pool, (x, y) = ensemble(), Pool(seed=0), images(400)
    right, noise = 3 * torch.eye(3)[y], x.flatten(1)[:, :3]
    pool.add(images=x, labels=y, member_logits=torch.stack([right + noise, noise - right], 1))
    teacher.weights.copy_(torch.tensor([weight, 0.0]))
    reweigh(teacher, pool, replace(BOOSTING, weight_step=0.1), epoch=2)
    assert teacher.weights[0] > 0
    assert teacher.weights[1] == 0


def test_the_perturbation_moves_each_pixel_by_its_size_in_the_direction_of_change() -> None:
    teacher = ensemble()
    x, _ = images()
    moved = perturbed(x, teacher, 0.01, torch.Generator().manual_seed(4))
    u = 2 * torch.rand(5, 3, generator=torch.Generator().manual_seed(4)) - 1
    for image, new, direction in zip(x, moved, u, strict=True):
        pixels = image.clone().requires_grad_()
        answers = (teacher(pixels[None])[0] / 4).softmax(0)
        sum(a * d for a, d in zip(answers, direction, strict=True)).backward()  # type: ignore[union-attr]
        torch.testing.assert_close(new, image + 0.01 * pixels.grad.sign())
    assert not moved.requires_grad


def test_what_is_asked_of_teachers_and_student_changes_neither() -> None:
    teacher, student = ensemble(), Linear(3)
    before = copy.deepcopy(teacher.members.state_dict())
    x, y = images()
    hard_sample_loss(teacher, student, BOOSTING)(x.requires_grad_(), y).backward()
    perturbed(x.detach(), teacher, 0.01, torch.Generator())
    for name, tensor in teacher.members.state_dict().items():
        assert torch.equal(before[name], tensor)
    assert student.linear.weight.grad is None


def test_the_ensemble_is_weighed_from_the_second_epoch_on() -> None:
    def weighed(epochs: int) -> list[float]:
        config = replace(BOOSTING, kd=replace(BOOSTING.kd, epochs=epochs))
        clients, server = tiny_federation(config, assign=dense.assign, num_clients=4)
        return co_boosting.METHOD.run(clients, server, config).figures["ensemble_weights"]

    assert weighed(1) == pytest.approx([0.25] * 4)
    assert weighed(3) != pytest.approx([0.25] * 4)


def test_the_global_model_learns_from_perturbed_images() -> None:
    def learned(size: float) -> Tensor:
        config = replace(BOOSTING, perturbation=size, kd=replace(BOOSTING.kd, epochs=1))
        clients, server = tiny_federation(config, assign=dense.assign, num_clients=2)
        return weights(co_boosting.METHOD.run(clients, server, config).model)

    assert not torch.equal(learned(0.0), learned(8 / 255))


@pytest.mark.parametrize(
    ("method", "config", "expected"),
    [
        (co_boosting.METHOD, BOOSTING, (10.0, "cosine")),
        (dense.METHOD, DENSE, (None, "constant")),
        (dense.METHOD, replace(DENSE, kd=BOOSTING.kd), (10.0, "cosine")),
    ],
)
def test_the_global_models_gradient_and_rate_are_cut_as_released_or_asked(
    method: Method, config: Any, expected: tuple[float | None, str]
) -> None:
    clients, server = tiny_federation(config, assign=dense.assign, num_clients=2)
    configs: list[Any] = []
    fit = server.fit

    def watched(*args: Any, config: Any, **how: Any) -> Any:
        configs.append(config)
        return fit(*args, config=config, **how)

    server.fit = watched  # type: ignore[method-assign]
    method.run(clients, server, config)
    assert [(config.clip, config.schedule) for config in configs] == [expected]


def test_the_global_model_is_that_of_the_first_clients_whoever_is_dropped() -> None:
    clients, server = tiny_federation(DENSE, assign=dense.assign, num_clients=4)
    whole = dense.run(clients, server, DENSE).model.state_dict()
    clients.dropped.update({0: "out of memory", 1: "out of power"})
    left = dense.run(clients, server, DENSE).model.state_dict()
    assert {n: t.shape for n, t in left.items()} == {n: t.shape for n, t in whole.items()}


@pytest.mark.parametrize(
    ("method", "config"), [(dense.METHOD, DENSE), (co_boosting.METHOD, BOOSTING)]
)
def test_a_run_is_a_pool_that_grows_and_one_pass_over_it_per_epoch(
    method: Method, config: Any
) -> None:
    """For settings of three epochs, each of which makes eight images."""
    seen: list[Told] = []
    clients, server = tiny_federation(
        config, assign=method.assign, num_clients=4, listener=into(seen)
    )
    outcome = method.run(clients, server, config)
    assert len(outcome.synthetic["images"]) == 3 * 8
    assert len(outcome.epochs) == 3
    epochs = named(seen, "epoch")
    assert [e["epoch"] for e in epochs] == [1, 2, 3]
    assert [e["accuracy"] for e in epochs] == [e.accuracy for e in outcome.epochs]
    assert server.evaluate(outcome.model) == outcome.epochs[-1]
    assert not outcome.model.training
    assert all(p.requires_grad for p in outcome.model.parameters())
    teacher = all_classifiers(clients.train(), server)
    if method is co_boosting.METHOD:
        teacher.weights.copy_(torch.tensor(outcome.figures["ensemble_weights"]))
    assert outcome.figures["teacher_accuracy"] == server.evaluate(teacher).accuracy
