"""Top-1 accuracy, overall and per class."""

import torch
from torch import Tensor, nn

from fl.federation import Evaluation


@torch.no_grad()
def evaluate(
    model: nn.Module, images: Tensor, labels: Tensor, num_classes: int, batch_size: int = 512
) -> Evaluation:
    """Accuracy of ``model`` in eval mode; leaves it in the mode it was in.

    Args:
        model: images (B, C, H, W) to logits (B, num_classes).
        images: (N, C, H, W) float32 in [0, 1], on the model's device.
        labels: (N,) int64.
        num_classes: number of classes.
        batch_size: samples per forward pass.
    """
    was_training = model.training
    model.eval()
    predicted = torch.cat([model(part).argmax(1) for part in images.split(batch_size)])
    model.train(was_training)
    totals = torch.bincount(labels, minlength=num_classes).tolist()
    hits = torch.bincount(labels[predicted == labels], minlength=num_classes).tolist()
    return Evaluation(
        accuracy=sum(hits) / len(labels),
        per_class=tuple(h / n if n else None for h, n in zip(hits, totals, strict=True)),
    )
