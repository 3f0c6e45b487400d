"""HFLDD's classifier for CIFAR-10: four blocks of two convolutions."""

from itertools import pairwise

from torch import Tensor, nn

from fl.models.shapes import ImageShape, ModelInfo, scaled

CHANNELS = (32, 64, 128, 256)
"""Of the blocks. The paper states none, only 1,020,160 parameters, which no usual channels give.
It names BatchNorm once for a block, after ReLU; here each convolution has its own, before it."""


class HFLDDCNN(nn.Module):
    """Four times [two 3x3 convolutions, each with BatchNorm and ReLU; 2x2 max pooling], one linear
    layer.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). H and W are at least 16.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = [image_shape[0], *(scaled(own, width) for own in CHANNELS)]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(channels):
            for received in (inputs, outputs):
                layers += [
                    nn.Conv2d(received, outputs, 3, padding=1),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                ]
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        height, width_left = (side // 2 ** len(CHANNELS) for side in image_shape[1:])
        self.classifier = nn.Linear(channels[-1] * height * width_left, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


def _at_least_16(image_shape: ImageShape) -> bool:
    """Whether a pixel is left after four poolings."""
    return min(image_shape[1:]) >= 16


MODEL = ModelInfo(
    "hfldd-cnn",
    "classifier",
    HFLDDCNN,
    _at_least_16,
    "sides of at least 16",
    "eight convolutions in four blocks: HFLDD's classifier for CIFAR-10",
)
