"""What is said of a teacher on synthetic samples, with and without an oracle beside it."""

import pytest
import torch
from torch import Tensor

from fl.metrics.teachers import describe_oracle, describe_teacher


def test_a_teacher_is_described_by_agreement_and_confidence() -> None:
    sure, unsure = [8.0, 0, 0, 0], [0.1, 0, 0, 0]
    logits = torch.tensor([sure, sure, unsure, unsure])
    said = describe_teacher(logits, torch.tensor([0, 1, 0, 2]))
    surest, least = torch.softmax(torch.tensor([sure, unsure]), 1)[:, 0].tolist()
    assert said["agreement"] == pytest.approx(0.5)
    assert said["confidence"] == pytest.approx((surest + least) / 2)
    assert said["confidence_when_wrong"] == pytest.approx((surest + least) / 2)
    assert describe_teacher(logits, torch.zeros(4))["confidence_when_wrong"] == 0


def sure_of(*classes: int) -> Tensor:
    return 8.0 * torch.nn.functional.one_hot(torch.tensor(classes), 4)


def test_a_wrong_synthetic_label_is_not_held_against_the_teacher() -> None:
    """Of six samples the oracle finds four labels right; the teacher answers as it does on five."""
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    oracle, teacher = sure_of(0, 1, 2, 3, 2, 3), sure_of(0, 1, 2, 0, 2, 3)
    assert describe_teacher(teacher, labels)["agreement"] == pytest.approx(3 / 6)
    said = describe_oracle(oracle, labels, teacher)
    assert said["agreement"] == pytest.approx(4 / 6)
    assert said["teacher"]["agreement"] == pytest.approx(5 / 6)
    assert said["teacher"]["agreement_where_confirmed"] == pytest.approx(3 / 4)


def test_an_oracle_that_confirms_nothing_and_a_method_without_a_teacher() -> None:
    labels = torch.tensor([0, 0])
    said = describe_oracle(sure_of(1, 2), labels, sure_of(1, 1))
    assert said["agreement"] == 0
    assert said["teacher"]["agreement_where_confirmed"] == 0
    assert "teacher" not in describe_oracle(sure_of(1, 2), labels)
