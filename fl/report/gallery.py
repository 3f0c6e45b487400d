"""Example images for the report: synthetic samples, and real ones only where asked for."""

import numpy as np
import torch
from torch import Tensor

from fl.data.datasets import Split
from fl.exchange import Tensors
from fl.inputs import as_inputs
from fl.report.read import REAL


def gallery(
    synthetic: Tensors, num_classes: int, real: Split | None = None, per_class: int = 8
) -> Tensors:
    """A few images of each class, spread evenly over all of them, and so over all decoders.

    Args:
        synthetic: images (N, C, H, W) in [0, 1], labels (N,), and kept (M,), indices into them.
        num_classes: the data set's classes.
        real: the training split. None: the gallery shows no real images.
        per_class: images per class and kind; missing ones stay black.

    Returns:
        ``before`` and ``after`` the filter, and ``real_images`` if the split is given: each uint8
        of shape (classes, per_class, C, H, W).
    """
    images = (synthetic["images"].cpu() * 255).round().to(torch.uint8)
    labels, kept = synthetic["labels"].cpu(), synthetic["kept"].cpu()
    found = {
        "before": _examples(images, labels, num_classes, per_class),
        "after": _examples(images[kept], labels[kept], num_classes, per_class),
    }
    if real is not None:
        pixels = (as_inputs(np.ascontiguousarray(real.images)) * 255).round().to(torch.uint8)
        found[REAL] = _examples(pixels, torch.from_numpy(real.labels), num_classes, per_class)
    return found


def _examples(images: Tensor, labels: Tensor, num_classes: int, per_class: int) -> Tensor:
    chosen = images.new_zeros(num_classes, per_class, *images.shape[1:])
    for c in range(num_classes):
        own = (labels == c).nonzero().flatten()
        if len(own):
            spread = torch.linspace(0, len(own) - 1, min(per_class, len(own))).long()
            chosen[c, : len(spread)] = images[own[spread]]
    return chosen
