"""Accuracy in all and by class, and what is taken for what."""

import pytest
import torch
from torch import Tensor, nn

from fl.accuracy import accuracies, answers, confusion
from fl.server import Evaluation

CLASSES = 4
LABELS = torch.tensor([0, 0, 0, 1, 1, 3])
PREDICTED = torch.tensor([0, 0, 2, 1, 3, 3])


def images(predicted: Tensor = PREDICTED) -> Tensor:
    """Images that are the logits of what is to be predicted."""
    return torch.eye(CLASSES)[predicted].view(-1, CLASSES, 1, 1)


def evaluate(
    model: nn.Module, images: Tensor, labels: Tensor, num_classes: int, batch_size: int = 512
) -> Evaluation:
    """Accuracy of ``model`` on images (N, C, H, W) with labels (N,)."""
    right = labels[answers(model, images, batch_size) == labels]
    hits = torch.bincount(right, minlength=num_classes)
    totals = torch.bincount(labels, minlength=num_classes)
    return accuracies(hits.tolist(), totals.tolist(), num_classes)


def test_accuracy_is_the_share_of_hits_overall_and_per_class() -> None:
    evaluation = evaluate(nn.Flatten(), images(), LABELS, CLASSES)
    assert evaluation.accuracy == 4 / 6
    assert evaluation.per_class == (2 / 3, 1 / 2, None, 1.0)


@pytest.mark.parametrize("batch_size", [1, 4, 512])
def test_accuracy_is_a_naive_count_in_batches_of_any_size(batch_size: int) -> None:
    stream = torch.Generator().manual_seed(0)
    predicted, labels = torch.randint(CLASSES, (2, 50), generator=stream)
    evaluation = evaluate(nn.Flatten(), images(predicted), labels, CLASSES, batch_size)
    pairs = list(zip(predicted.tolist(), labels.tolist(), strict=True))
    assert evaluation.accuracy == sum(p == t for p, t in pairs) / 50
    for c, accuracy in enumerate(evaluation.per_class):
        own = [p == t for p, t in pairs if t == c]
        assert accuracy == sum(own) / len(own)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_asked_in_eval_mode_and_left_in_its_own(training: bool) -> None:
    class Watching(nn.Flatten):
        def forward(self, input: Tensor) -> Tensor:
            assert not self.training
            assert not torch.is_grad_enabled()
            return super().forward(input)

    model = nn.Sequential(Watching(), nn.Dropout(0.9)).train(training)
    assert evaluate(model, images(), LABELS, CLASSES).accuracy == 4 / 6
    assert all(module.training == training for module in model.modules())


def test_groups_are_domains_of_classes() -> None:
    evaluation = accuracies([1, 2, 0, 4], [2, 2, 0, 8], num_classes=2)
    assert evaluation.accuracy == 7 / 12
    assert evaluation.per_class == (1 / 2, 6 / 10)
    assert evaluation.per_domain == (3 / 4, 4 / 8)


def test_confusion_counts_each_class_by_what_it_is_taken_for() -> None:
    counts = confusion(PREDICTED, LABELS, CLASSES)
    assert counts.tolist() == [[2, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    evaluation = evaluate(nn.Flatten(), images(), LABELS, CLASSES)
    assert int(counts.trace()) / int(counts.sum()) == evaluation.accuracy
    assert confusion(PREDICTED[:0], LABELS[:0], CLASSES).tolist() == [[0] * CLASSES] * CLASSES
