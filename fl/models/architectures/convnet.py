"""ConvNet, the classifier of distribution matching, FedDM and FedAF (CVPR'24, Appendix A)."""

from itertools import pairwise

from torch import Tensor, nn

from fl.models.info import ModelInfo, at_least_8
from fl.models.shapes import ImageShape, scaled

DEPTH = 3


class ConvNet(nn.Module):
    """Three times [3x3 convolution, BatchNorm, ReLU, 2x2 average pooling], and one linear layer.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). H and W are at least 8: three
    poolings halve them.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = [image_shape[0], *[scaled(128, width)] * DEPTH]
        # MNIST's images become 32x32 in the first convolution, as in the reference code.
        enlarge = image_shape == (1, 28, 28)
        side = (32, 32) if enlarge else image_shape[1:]
        layers: list[nn.Module] = []
        for depth, (inputs, outputs) in enumerate(pairwise(channels)):
            padding = 3 if enlarge and depth == 0 else 1
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=padding),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
        self.features = nn.Sequential(*layers)
        pooled = (side[0] // 2**DEPTH) * (side[1] // 2**DEPTH)
        self.classifier = nn.Linear(channels[-1] * pooled, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


MODEL = ModelInfo(
    "convnet",
    "classifier",
    ConvNet,
    at_least_8,
    "sides of at least 8",
    "three convolutions with BatchNorm and average pooling: FedDM's and FedAF's classifier",
)
