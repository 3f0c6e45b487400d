"""Distances of soft labels, against torch's own, and the answers of a frozen teacher."""

import torch
import torch.nn.functional as F

from fl.training.classifier import starting_classifier
from fl.training.losses import divergences, logits_of
from tests.fl.toy import CLASSIFIER, PROBLEM


def test_it_is_the_kullback_leibler_divergence_of_each_row() -> None:
    teacher, student = torch.randn(2, 7, 5)
    for tau in (1.0, 3.0):
        t, s = (teacher / tau).softmax(1), (student / tau).log_softmax(1)
        expected = tau**2 * F.kl_div(s, t, reduction="none").sum(1)
        torch.testing.assert_close(divergences(teacher, student, tau), expected)
    assert torch.equal(divergences(teacher, teacher), torch.zeros(7))


def test_classes_may_weigh_differently() -> None:
    teacher, student = torch.randn(2, 7, 5)
    weights = torch.rand(5)
    t, s = teacher.softmax(1), student.softmax(1)
    expected = (weights * t * (t / s).log()).sum(1)
    torch.testing.assert_close(divergences(teacher, student, 1.0, weights), expected)
    rows = weights.expand(7, -1)
    assert torch.equal(
        divergences(teacher, student, 1.0, rows), divergences(teacher, student, 1.0, weights)
    )


def test_a_teachers_answers_keep_the_images_order() -> None:
    model, images = starting_classifier(CLASSIFIER, PROBLEM), torch.rand(9, 1, 28, 28)
    logits = logits_of(model, images, 4)
    torch.testing.assert_close(logits, model(images).detach())
    assert not logits.requires_grad
