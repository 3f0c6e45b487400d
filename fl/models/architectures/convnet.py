"""ConvNet, the classifier of distribution matching, FedDM and FedAF (CVPR'24, Appendix A), and two
of HFLDD's: for CINIC-10 one that normalises every image by itself, for CIFAR-10 a deeper one."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import nn

from fl.models.shapes import Flattening, ImageShape, at_least, scaled

DEPTH = 3


class ConvNet(Flattening):
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


def _instance_norm(channels: int) -> nn.Module:
    """Instance normalisation with a scale and a shift for each channel: a group for each."""
    return nn.GroupNorm(channels, channels)


HFLDD_CHANNELS = (32, 64, 128, 256)
"""Of the blocks. The paper states none, only 1,020,160 parameters, which no usual channels give.
It names BatchNorm once for a block, after ReLU; here each convolution has its own, before it."""


class HFLDDCNN(Flattening):
    """Four times [two 3x3 convolutions, each with BatchNorm and ReLU; 2x2 max pooling], one linear
    layer.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). H and W are at least 16.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = [image_shape[0], *(scaled(own, width) for own in HFLDD_CHANNELS)]
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
        height, width_left = (side // 2 ** len(HFLDD_CHANNELS) for side in image_shape[1:])
        self.classifier = nn.Linear(channels[-1] * height * width_left, num_classes)


MODELS = (
    at_least(8, "convnet", ConvNet),
    at_least(8, "convnet-instance", partial(ConvNet, norm=_instance_norm)),
    at_least(16, "hfldd-cnn", HFLDDCNN),
)
