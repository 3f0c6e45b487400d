"""ConvNet, the classifier of distribution matching, FedDM and FedAF (CVPR'24, Appendix A), and
HFLDD's for CINIC-10, which normalises every image by itself."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from fl.models.shapes import ImageShape, ModelInfo, at_least_8, scaled

DEPTH = 3


class ConvNet(nn.Module):
    """Three times [3x3 convolution, normalisation, ReLU, 2x2 average pooling], and a linear layer.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). H and W are at least 8: three
    poolings halve them. ``norm`` makes the normalisation of so many channels.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        width: float = 1.0,
        *,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
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
                norm(outputs),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
        self.features = nn.Sequential(*layers)
        pooled = (side[0] // 2**DEPTH) * (side[1] // 2**DEPTH)
        self.classifier = nn.Linear(channels[-1] * pooled, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images).flatten(1))


def _instance_norm(channels: int) -> nn.Module:
    """Instance normalisation with a scale and a shift for each channel: a group for each."""
    return nn.GroupNorm(channels, channels)


MODELS = (
    ModelInfo(
        "convnet",
        "classifier",
        ConvNet,
        at_least_8,
        "sides of at least 8",
        "three convolutions with BatchNorm and average pooling: FedDM's and FedAF's classifier",
    ),
    ModelInfo(
        "convnet-instance",
        "classifier",
        partial(ConvNet, norm=_instance_norm),
        at_least_8,
        "sides of at least 8",
        "the same with instance normalisation: HFLDD's classifier for CINIC-10",
    ),
)
