"""DENSE against a naive twin of what it does in an epoch."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fl.errors import UserError
from fl.federation import RunSpec
from fl.fusion.inversion import BatchNormDistance, DistillationConfig, crop_and_flip
from fl.methods.dense import METHOD, DenseConfig, assign, generator_loss
from tests.fl.methods.pooled import (
    CLASSIFIER,
    INVERSION,
    Linear,
    check_that_the_pool_grows_and_is_learned_once_per_epoch,
    ensemble,
    images,
    kl,
    probabilities,
)

CONFIG = DenseConfig(
    classifier=CLASSIFIER,
    small_width=0.5,
    inversion=INVERSION,
    kd=DistillationConfig(epochs=3, batch_size=8),
)


def test_the_generators_loss_is_the_three_terms_sample_by_sample() -> None:
    teacher, student, config = ensemble(), Linear(3), replace(CONFIG, ce=0.7, bn=0.5, adv=2.0)
    x, y = images()
    with BatchNormDistance(teacher.members).watching() as statistics:
        loss = generator_loss(
            teacher, student, statistics, config, torch.Generator().manual_seed(9)
        )(x, y)
    views = crop_and_flip(x, torch.Generator().manual_seed(9))
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
            make = generator_loss(teacher, Linear(3), statistics, replace(CONFIG, bn=bn), stream)
            return make(*images())

    assert torch.equal(loss(bn=1.0), loss(bn=0.0))


def test_a_run_is_a_pool_that_grows_and_one_pass_over_it_per_epoch() -> None:
    check_that_the_pool_grows_and_is_learned_once_per_epoch(METHOD, CONFIG)


def test_images_that_the_generator_cannot_make_are_refused_before_anything_starts() -> None:
    spec = RunSpec(image_shape=(1, 30, 28), num_classes=10, seed=0)
    with pytest.raises(UserError, match="sides divisible by 4"):
        assign(CONFIG, 4, spec)
