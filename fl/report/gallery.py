"""Example images for the report: real beside synthetic, before and after the filter."""

import numpy as np
import torch
from torch import Tensor

from fl.data.datasets import Dataset
from fl.wire import Tensors


def gallery(dataset: Dataset, synthetic: Tensors, per_class: int = 8) -> Tensors:
    """A few images of each class, spread evenly over all of them, and so over all decoders.

    Args:
        dataset: its training split gives the real ones.
        synthetic: images (N, C, H, W) in [0, 1], labels (N,), and kept (M,), indices into them.
        per_class: images per class and kind; missing ones stay black.

    Returns:
        ``real``, ``before`` and ``after`` (classes, per_class, C, H, W) uint8; ``present``
        (classes,) uint8, 1 where the class has synthetic samples.
    """
    images = (synthetic["images"].cpu() * 255).round().to(torch.uint8)
    labels, kept = synthetic["labels"].cpu(), synthetic["kept"].cpu()
    classes = dataset.num_classes
    real = torch.from_numpy(np.ascontiguousarray(dataset.train.images))
    real_labels = torch.from_numpy(dataset.train.labels)
    return {
        "real": _examples(real, real_labels, classes, per_class),
        "before": _examples(images, labels, classes, per_class),
        "after": _examples(images[kept], labels[kept], classes, per_class),
        "present": (torch.bincount(labels, minlength=classes) > 0).to(torch.uint8),
    }


def _examples(images: Tensor, labels: Tensor, num_classes: int, per_class: int) -> Tensor:
    chosen = images.new_zeros(num_classes, per_class, *images.shape[1:])
    for c in range(num_classes):
        own = (labels == c).nonzero().flatten()
        if len(own):
            spread = torch.linspace(0, len(own) - 1, min(per_class, len(own))).long()
            chosen[c, : len(spread)] = images[own[spread]]
    return chosen
