"""Each term against a naive twin, class by class and sample by sample."""

import math

import pytest
import torch
from torch import Tensor

from fl.condensation.task import (
    class_means,
    distribution_matching,
    knowledge_matching,
    random_directions,
    sliced_wasserstein,
)

CLOSED = torch.empty(0, 5)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_class_means_are_each_classs_own_and_tell_who_is_missing() -> None:
    values, labels = draw(7, 3), torch.tensor([2, 0, 2, 4, 0, 0, 2])
    means, there = class_means(values, labels, 5)
    assert there.tolist() == [True, False, True, False, True]
    for c in range(5):
        own = [v for v, label in zip(values, labels.tolist(), strict=True) if label == c]
        expected = sum(own[1:], start=own[0]) / len(own) if own else torch.zeros(3)
        torch.testing.assert_close(means[c], expected)


def test_distribution_matching_is_eq_4() -> None:
    real, condensed = draw(4, 6), draw(4, 6, seed=1)
    expected = sum(
        (real[c, j].item() - condensed[c, j].item()) ** 2 for c in range(4) for j in range(6)
    )
    assert distribution_matching(real, condensed).item() == pytest.approx(expected, rel=1e-5)


def test_the_closed_form_is_the_limit_of_many_directions() -> None:
    u, v = draw(3, 5), draw(3, 5, seed=1)
    closed = sliced_wasserstein(u, v, CLOSED)
    many = random_directions(200_000, 5, torch.Generator().manual_seed(2))
    torch.testing.assert_close(many.norm(dim=1), torch.ones(len(many)))
    assert sliced_wasserstein(u, v, many).item() == pytest.approx(closed.item(), rel=0.01)
    assert closed.item() == pytest.approx(
        sum(math.dist(a, b) for a, b in zip(u.tolist(), v.tolist(), strict=True)) / math.sqrt(5),
        rel=1e-5,
    )


def test_the_sampled_form_sorts_and_compares_along_each_direction() -> None:
    u, v = draw(3, 5), draw(3, 5, seed=1)
    directions = random_directions(4, 5, torch.Generator().manual_seed(2))
    expected = 0.0
    for a, b in zip(u, v, strict=True):
        # The Wasserstein distance on a line of two single points is how far they lie apart.
        gaps = [float(a @ d - b @ d) for d in directions]
        expected += math.sqrt(sum(gap**2 for gap in gaps) / len(gaps))
    assert sliced_wasserstein(u, v, directions).item() == pytest.approx(expected, rel=1e-5)


def test_where_nothing_is_apart_the_gradient_is_zero_and_not_nan() -> None:
    u = draw(3, 5).requires_grad_()
    sliced_wasserstein(u, u.detach().clone(), CLOSED).backward()
    assert u.grad is not None
    assert torch.equal(u.grad, torch.zeros(3, 5))


def test_knowledge_matching_is_the_mean_of_both_divergences() -> None:
    r, t = draw(4, 6).softmax(1), draw(4, 6, seed=1).softmax(1)
    expected = 0.0
    for p, q in zip(r.tolist(), t.tolist(), strict=True):
        forth = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        back = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
        expected += (forth + back) / 2 / 4
    assert knowledge_matching(r, t.log()).item() == pytest.approx(expected, rel=1e-5)
    assert knowledge_matching(r, r.log()).item() == pytest.approx(0, abs=1e-6)
    sure = torch.eye(6)[:4]  # a label of exactly 0 or 1
    assert knowledge_matching(sure, t.log()).isfinite()
