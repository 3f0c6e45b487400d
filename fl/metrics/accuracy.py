"""Top-1 accuracy, overall and per class."""

import torch
from torch import Tensor, nn

from fl.federation import Evaluation


@torch.no_grad()
def count_hits(
    model: nn.Module, images: Tensor, labels: Tensor, num_classes: int, batch_size: int = 512
) -> Tensor:
    """Right answers of ``model`` for each class, (num_classes,) int64, on its device.

    Args:
        model: images (B, C, H, W) to logits (B, num_classes); asked in eval mode, and left in the
            mode it was in.
        images: (N, C, H, W) float32 in [0, 1], on the model's device.
        labels: (N,) int64.
        num_classes: number of classes.
        batch_size: samples per forward pass.
    """
    was_training = model.training
    model.eval()
    hits = labels.new_zeros(num_classes)
    for part, truth in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        if len(part):
            right = truth[model(part).argmax(1) == truth]
            hits += torch.bincount(right, minlength=num_classes)
    model.train(was_training)
    return hits


def accuracies(hits: list[int], totals: list[int]) -> Evaluation:
    """Overall and per class, from the right answers and the samples of each class."""
    return Evaluation(
        accuracy=sum(hits) / sum(totals),
        per_class=tuple(h / n if n else None for h, n in zip(hits, totals, strict=True)),
    )


def evaluate(
    model: nn.Module, images: Tensor, labels: Tensor, num_classes: int, batch_size: int = 512
) -> Evaluation:
    """Accuracy of ``model``; arguments as for :func:`count_hits`."""
    hits = count_hits(model, images, labels, num_classes, batch_size)
    totals = torch.bincount(labels, minlength=num_classes)
    return accuracies(hits.tolist(), totals.tolist())
