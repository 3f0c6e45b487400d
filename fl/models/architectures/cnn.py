"""The small classifier of FedMHO (WWW'26, Table 2), in its three forms."""

from itertools import pairwise

from torch import Tensor, nn

from fl.models.shapes import ImageShape, ModelInfo, at_least_8, paper_form, scaled


class CNN(nn.Module):
    """The paper's CNN for MNIST and FMNIST, for EMNIST, or for SVHN, whichever suits the images.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes), never through a softmax: FedMHO's
    code has one in the MNIST form, which flattens the cross-entropy's gradient and would mix
    probabilities with VGG-9's logits in a teacher.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        form = paper_form(image_shape, num_classes)
        if form == "mnist":
            channels = [scaled(c, width) for c in (10, 20)]
            side = (4, 4)
            self.features = _unpadded(channels)
        else:
            deepest = (128, 128) if form == "emnist" else (128,)
            channels = [scaled(c, width) for c in (16, 32, 64, *deepest)]
            side = (image_shape[1] // 8, image_shape[2] // 8)
            self.features = _padded(image_shape[0], channels)
        self.classifier = nn.Linear(channels[-1] * side[0] * side[1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


def _unpadded(channels: list[int]) -> nn.Sequential:
    """MNIST's two 5x5 convolutions, each pooled: 28x28 becomes 4x4."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([1, *channels]):
        layers += [nn.Conv2d(inputs, outputs, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers)


def _padded(image_channels: int, channels: list[int]) -> nn.Sequential:
    """EMNIST's and SVHN's 3x3 convolutions, the first three pooled."""
    layers: list[nn.Module] = []
    for depth, (inputs, outputs) in enumerate(pairwise([image_channels, *channels])):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        if depth < 3:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


MODEL = ModelInfo(
    "cnn",
    "classifier",
    CNN,
    at_least_8,
    "sides of at least 8",
    "two to five convolutions, by data set: FedMHO's small classifier",
)
