"""Models and losses that ranks could get wrong: dropout, BatchNorm, wide layers, two passes.

And a batch of data for them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.federation import Batch
from fl.fusion.distillation import FusionLoss
from fl.methods.fedaf import KnowledgeLoss
from fl.models.ensemble import Ensemble
from fl.models.registry import build_classifier

SIZE, CLASSES = 29, 10
LOSS = FusionLoss(ce_weight=0.5, kd_weight=0.5)
KNOWLEDGE = KnowledgeLoss(weight=3.0, temperature=2.0)


def two_passes(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that calls the model twice: dropout and BatchNorm meet the same rows again."""
    first, second = model(batch["images"]), model(batch["images"].flip(3))
    return F.cross_entropy(first, batch["labels"]) + (first - second).square().mean()


two_passes.whole_batch = False  # type: ignore[attr-defined]


def vgg9() -> nn.Module:
    return build_classifier("vgg9", (1, 28, 28), CLASSES, width=0.05)


def convnet() -> nn.Module:
    """Has BatchNorm behind each convolution."""
    return build_classifier("convnet", (1, 28, 28), CLASSES, width=0.05)


def cumulative() -> nn.Module:
    """BatchNorm whose running statistics are plain means, and one that keeps none."""
    layers = nn.Linear(784, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU()
    bare = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
    return nn.Sequential(nn.Flatten(), *layers, bare, nn.Dropout(0.2), nn.Linear(6, CLASSES))


def mixed() -> nn.Module:
    return Ensemble([convnet(), vgg9()])


def twins() -> nn.Module:
    return Ensemble([vgg9(), vgg9()])


def data(dtype: torch.dtype = torch.float64) -> Batch:
    """What each of the losses needs."""
    stream = torch.Generator().manual_seed(1)
    return {
        "images": torch.rand(SIZE, 1, 28, 28, generator=stream).to(dtype),
        "labels": torch.randint(CLASSES, (SIZE,), generator=stream),
        "teacher_logits": torch.randn(SIZE, CLASSES, generator=stream).to(dtype),
        "soft_labels": torch.randn(SIZE, CLASSES, generator=stream).to(dtype).softmax(1),
    }
