"""VGG-9, the large classifier of FedMHO (WWW'26, Table 2)."""

from torch import Tensor, nn

from fl.models.shapes import ImageShape, at_least, scaled

POOLED = 7  # side of the feature map that the first fully connected layer sees


class VGG9(nn.Module):
    """Four 3x3 convolutions and three fully connected layers, without batch normalisation.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). H and W are at least 8: three
    poolings halve them. Dropout is on in train mode, as FedMHO's server uses it.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        c1, c2, c3 = (scaled(channels, width) for channels in (64, 128, 256))
        hidden = scaled(4096, width)
        self.map_shape = (image_shape[1] // 8, image_shape[2] // 8)  # of what is enlarged
        self.features = nn.Sequential(
            *_conv(image_shape[0], c1),
            nn.MaxPool2d(2),
            *_conv(c1, c2),
            nn.MaxPool2d(2),
            *_conv(c2, c3),
            *_conv(c3, c3),
            nn.MaxPool2d(2),
            # Enlarges the 3x3 or 4x4 map that 28- or 32-pixel images leave here.
            nn.AdaptiveAvgPool2d(POOLED),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            *_hidden(c3 * POOLED**2, hidden),
            *_hidden(hidden, hidden),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images))


def _conv(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()


def _hidden(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(0.5)


MODEL = at_least(8, "vgg9", VGG9)
