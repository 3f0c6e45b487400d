"""The fusion loss against Eq. 7 in Python's floats, and its learned weights."""

import math
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl.federation import Batch
from fl.fusion.distillation import (
    FusionLoss,
    KLReduction,
    LearnedFusionLoss,
    Weighing,
    agreed_logits,
    agreement_weights,
)

CLASSES = 4


class Table(nn.Module):
    """A student whose logits are its parameters, whatever the images."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def random_batch(seed: int, size: int = 5) -> tuple[Tensor, Batch]:
    """A student's logits, and a batch for it."""
    stream = torch.Generator().manual_seed(seed)
    batch = {
        "images": torch.zeros(size, 1),
        "labels": torch.randint(CLASSES, (size,), generator=stream),
        "teacher_logits": 3 * torch.randn(size, CLASSES, generator=stream),
    }
    return 3 * torch.randn(size, CLASSES, generator=stream), batch


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(x) for x in logits))
    return [x - total for x in logits]


def naive_loss(student: Tensor, batch: Batch, ce: float, kd: float, reduction: str) -> float:
    """Eq. 7 in Python's floats, sample by sample."""
    total = 0.0
    for logits, label, asked in zip(
        student.tolist(), batch["labels"].tolist(), batch["teacher_logits"].tolist(), strict=True
    ):
        log_q, log_p = log_softmax(logits), log_softmax(asked)
        kl = sum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True))
        total += ce * -log_q[label] + kd * (kl if reduction == "batchmean" else kl / CLASSES)
    return total / len(student)


@settings(max_examples=60, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 6),
    ce=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    kd=st.sampled_from([0.0, 0.5, 0.7, 2.0]),
    reduction=st.sampled_from(["batchmean", "mean"]),
)
def test_the_loss_is_equation_7(
    seed: int, size: int, ce: float, kd: float, reduction: KLReduction
) -> None:
    student, batch = random_batch(seed, size)
    loss = FusionLoss(ce_weight=ce, kd_weight=kd, kl_reduction=reduction)(Table(student), batch)
    expected = naive_loss(student, batch, ce, kd, reduction)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_gradient_pulls_towards_labels_and_teacher() -> None:
    logits, batch = random_batch(2)
    student = Table(logits)
    FusionLoss(ce_weight=0.25, kd_weight=0.75)(student, batch).backward()
    chances = logits.softmax(1)
    labels = torch.eye(CLASSES)[batch["labels"]]
    teachers = batch["teacher_logits"].softmax(1)
    expected = (0.25 * (chances - labels) + 0.75 * (chances - teachers)) / len(logits)
    assert student.logits.grad is not None
    torch.testing.assert_close(student.logits.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("ce", "kd", "unneeded"), [(0.0, 1.0, "labels"), (1.0, 0.0, "teacher_logits")]
)
def test_a_term_without_weight_needs_no_data(ce: float, kd: float, unneeded: str) -> None:
    logits, batch = random_batch(3)
    loss = FusionLoss(ce_weight=ce, kd_weight=kd)
    whole = loss(Table(logits), batch)
    del batch[unneeded]
    assert torch.equal(loss(Table(logits), batch), whole)


def test_sure_students_and_teachers_give_finite_losses() -> None:
    _, batch = random_batch(4, size=2)
    batch["teacher_logits"] = torch.tensor([[1e4, 0, 0, 0], [0, -1e4, 0, 0]])
    student = Table(torch.tensor([[0.0, 1e4, 0, 0], [0, 0, 0, -1e4]]))
    loss = FusionLoss(ce_weight=0.5, kd_weight=0.5)(student, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert student.logits.grad is not None
    assert torch.isfinite(student.logits.grad).all()


def test_learned_weights_start_as_ones_and_weigh_what_their_variances_say() -> None:
    logits, batch = random_batch(5)
    model, fixed = Weighing(Table(logits)), FusionLoss(ce_weight=1, kd_weight=1)
    assert model.betas == (1.0, 1.0)
    torch.testing.assert_close(LearnedFusionLoss()(model, batch), fixed(Table(logits), batch))
    with torch.no_grad():
        model.log_variances.copy_(torch.tensor([math.log(4.0), math.log(0.5)]))
    assert model.betas == pytest.approx((0.25, 2.0))
    expected = naive_loss(logits, batch, 2.0, 0.25, "batchmean") + math.log(4.0 * 0.5) / 2
    assert LearnedFusionLoss()(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_a_model_without_weights_to_learn_is_refused() -> None:
    logits, batch = random_batch(7)
    with pytest.raises(TypeError, match="no weights to learn: Table"):
        LearnedFusionLoss()(Table(logits), batch)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_teacher_weighs_as_much_as_the_others_median_shares_of_it(count: int) -> None:
    logits = 3 * torch.randn(count, 6, CLASSES, generator=torch.Generator().manual_seed(count))
    weights, rows = agreement_weights(logits), logits.softmax(2).tolist()
    for k in range(count):
        for i in range(6):
            expected = sum(
                min(rows[k][i][c], median(rows[j][i][c] for j in range(count) if j != k))
                for c in range(CLASSES)
            )
            assert float(weights[k, i]) == pytest.approx(expected, abs=1e-6)
            assert 0 <= float(weights[k, i]) <= 1 + 1e-6


def test_agreed_logits_are_the_weighted_mean() -> None:
    logits = torch.randn(4, 5, CLASSES, generator=torch.Generator().manual_seed(0))
    weights = agreement_weights(logits)
    for i in range(5):
        expected = sum(weights[k, i] * logits[k, i] for k in range(4)) / weights[:, i].sum()
        torch.testing.assert_close(agreed_logits(logits)[i], expected)


def test_a_liar_is_outvoted_by_those_that_agree() -> None:
    honest = torch.tensor([[[9.0, 0.0, 0.0, 0.0]]]).repeat(3, 1, 1)
    liar = torch.tensor([[[0.0, 90.0, 0.0, 0.0]]])
    logits = torch.cat([honest, liar])
    assert int(logits.mean(0).argmax()) == 1
    assert int(agreed_logits(logits).argmax()) == 0
    torch.testing.assert_close(agreed_logits(logits), honest[0], atol=0.05, rtol=0)


def test_equal_teachers_and_fewer_than_three_are_averaged_as_before() -> None:
    alike = torch.randn(1, 5, CLASSES).repeat(4, 1, 1)
    torch.testing.assert_close(agreed_logits(alike), alike[0])
    two = torch.randn(2, 5, CLASSES)
    torch.testing.assert_close(agreed_logits(two), two.mean(0))


def test_where_no_two_agree_the_plain_mean_is_left() -> None:
    logits = 400 * torch.eye(4).unsqueeze(1)
    assert agreement_weights(logits).sum() == 0
    torch.testing.assert_close(agreed_logits(logits), logits.mean(0))
