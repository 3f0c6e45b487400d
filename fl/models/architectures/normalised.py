"""Classifiers with normalisation in front of ReLU: ConvNet, HFLDD's CNN, and ResNet-18.

ConvNet is the classifier of distribution matching, FedDM and FedAF (CVPR'24, Appendix A). Of HFLDD
are one of it that normalises every image by itself, for CINIC-10, and a deeper CNN for CIFAR-10.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from fl.models.common import Flattening, ImageShape, at_least, scaled

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


class ResNet18(Flattening):
    """ResNet-18 (He et al., CVPR 2016) in its ImageNet form, for images of any size: a 7x7 stem and
    four stages of two blocks, as FedAF (CVPR'24, Appendix B) uses it.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). Images of up to 32 pixels leave
    the last stage as a single pixel, so in training BatchNorm needs two of them in a batch.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = [scaled(c, width) for c in (64, 64, 128, 256, 512)]
        blocks: list[nn.Module] = []
        for stage, (inputs, outputs) in enumerate(pairwise(channels)):
            blocks += [Block(inputs, outputs, stride=min(stage, 1) + 1), Block(outputs, outputs)]
        self.features = nn.Sequential(
            nn.Conv2d(image_shape[0], channels[0], 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(channels[-1], num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H / stride, W / stride), rounded up."""
        return self.relu(self.residual(x) + self.shortcut(x))


MODELS = (
    at_least(8, "convnet", ConvNet),
    at_least(8, "convnet-instance", partial(ConvNet, norm=_instance_norm)),
    at_least(16, "hfldd-cnn", HFLDDCNN),
    at_least(8, "resnet18", ResNet18),
)
