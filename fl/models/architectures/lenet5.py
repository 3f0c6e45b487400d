"""LeNet-5 (LeCun et al., 1998), HFLDD's classifier for MNIST."""

from torch import Tensor, nn

from fl.models.shapes import ImageShape, ModelInfo, scaled


class LeNet5(nn.Module):
    """Twice [5x5 convolution without padding, ReLU, 2x2 max pooling], and three linear layers.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). HFLDD's paper says 32x32x3 of its
    input; MNIST's images are taken as they are, 28x28x1.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        c1, c2, f1, f2 = (scaled(units, width) for units in (6, 16, 120, 84))
        self.features = nn.Sequential(
            *(nn.Conv2d(image_shape[0], c1, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(c1, c2, 5), nn.ReLU(), nn.MaxPool2d(2)),
        )
        height, width_left = (((side - 4) // 2 - 4) // 2 for side in image_shape[1:])
        self.classifier = nn.Sequential(
            *(nn.Linear(c2 * height * width_left, f1), nn.ReLU()),
            *(nn.Linear(f1, f2), nn.ReLU()),
            nn.Linear(f2, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


def _at_least_16(image_shape: ImageShape) -> bool:
    """Whether a pixel is left after both convolutions and poolings."""
    return min(image_shape[1:]) >= 16


MODEL = ModelInfo(
    "lenet5",
    "classifier",
    LeNet5,
    _at_least_16,
    "sides of at least 16",
    "two convolutions and three linear layers: HFLDD's classifier for MNIST",
)
