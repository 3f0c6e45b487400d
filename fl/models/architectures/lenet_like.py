"""M1 and M2, the LeNet-like classifiers of FedD2S (Section IV-A)."""

from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from fl.models.shapes import ImageShape, ModelInfo, at_least_8, scaled

Units = tuple[int, int, int]


class LeNetLike(nn.Module):
    """Three times [3x3 convolution, ReLU, 2x2 max pooling], and three linear layers.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). H and W are at least 8: three
    poolings halve them. The paper says nothing of pooling; by it the layers have its sizes.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        width: float = 1.0,
        *,
        channels: Units,
        hidden: tuple[int, int],
    ) -> None:
        super().__init__()
        deep = [scaled(count, width) for count in channels]
        wide = [scaled(count, width) for count in hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([image_shape[0], *deep]):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        flat = deep[-1] * (image_shape[1] // 8) * (image_shape[2] // 8)
        self.classifier = nn.Sequential(
            nn.Linear(flat, wide[0]),
            nn.ReLU(),
            nn.Linear(wide[0], wide[1]),
            nn.ReLU(),
            nn.Linear(wide[1], num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


MODELS = [
    ModelInfo(
        "m1",
        "classifier",
        partial(LeNetLike, channels=(8, 16, 32), hidden=(32, 16)),
        at_least_8,
        "sides of at least 8",
        "three convolutions and three linear layers: FedD2S's M1",
    ),
    ModelInfo(
        "m2",
        "classifier",
        partial(LeNetLike, channels=(16, 64, 128), hidden=(128, 32)),
        at_least_8,
        "sides of at least 8",
        "the same, wider: FedD2S's M2",
    ),
]
