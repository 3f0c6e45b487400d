"""Co-Boosting against a naive twin of what it does in an epoch."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fl.fusion.inversion import DistillationConfig, Pool
from fl.methods.co_boosting import (
    METHOD,
    CoBoostingConfig,
    ask,
    assign,
    hard_sample_loss,
    perturbed,
    reweigh,
    run,
)
from tests.fl.methods.pooled import (
    CLASSIFIER,
    INVERSION,
    Linear,
    check_that_the_pool_grows_and_is_learned_once_per_epoch,
    ensemble,
    images,
    kl,
    probabilities,
    weights,
)
from tests.fl.methods.tiny import tiny_federation

CONFIG = CoBoostingConfig(
    classifier=CLASSIFIER,
    small_width=0.5,
    inversion=INVERSION,
    kd=DistillationConfig(epochs=3, batch_size=8, temperature=4.0),
)


def test_the_generators_loss_weighs_hard_samples_and_competes_unmasked() -> None:
    teacher, student, config = ensemble(), Linear(3).eval(), replace(CONFIG, ce=0.7, adv=2.0)
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
    teacher, config = ensemble(), replace(CONFIG, adv=0.0)
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
    config = replace(CONFIG, weight_step=0.3, weight_decay=0.5)
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
    hard_sample_loss(teacher, student, CONFIG)(x.requires_grad_(), y).backward()
    ask(teacher, perturbed(x.detach(), teacher, 0.01, torch.Generator()))
    for name, tensor in teacher.members.state_dict().items():
        assert torch.equal(before[name], tensor)
    assert student.linear.weight.grad is None


def test_the_ensemble_is_weighed_from_the_second_epoch_on() -> None:
    def weighed(epochs: int) -> list[float]:
        config = replace(CONFIG, kd=replace(CONFIG.kd, epochs=epochs))
        clients, server = tiny_federation(config, assign=assign, num_clients=4)
        return run(clients, server, config).figures["ensemble_weights"]

    assert weighed(1) == pytest.approx([0.25] * 4)
    assert weighed(3) != pytest.approx([0.25] * 4)


def test_the_global_model_learns_from_perturbed_images() -> None:
    def learned(size: float) -> Tensor:
        config = replace(CONFIG, perturbation=size, kd=replace(CONFIG.kd, epochs=1))
        clients, server = tiny_federation(config, assign=assign, num_clients=2)
        return weights(run(clients, server, config).model)

    assert not torch.equal(learned(0.0), learned(8 / 255))


def test_the_global_models_gradient_is_cut_to_the_released_norm() -> None:
    clients, server = tiny_federation(CONFIG, assign=assign, num_clients=2)
    configs: list[Any] = []
    fit = server.fit

    def watched(*args: Any, config: Any, **how: Any) -> Any:
        configs.append(config)
        return fit(*args, config=config, **how)

    server.fit = watched  # type: ignore[method-assign]
    run(clients, server, CONFIG)
    assert [(config.clip, config.schedule) for config in configs] == [(10.0, "cosine")]


def test_a_run_is_a_pool_that_grows_and_one_pass_over_it_per_epoch() -> None:
    check_that_the_pool_grows_and_is_learned_once_per_epoch(METHOD, CONFIG)
