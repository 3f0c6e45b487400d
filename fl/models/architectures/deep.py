"""The deep classifiers of FedMHO's Table 9 and HFLDD's Table V, of torchvision's blocks.

The papers name them, but not how 28x28 images pass networks made for 224x224. Here the stem does
not shrink the image, as is usual for small images: a 3x3 convolution of stride 1, and no pooling.
Behind it are the blocks, strides and channels of the originals. At width 1 they have torchvision's
parameters except for the stem and the head.
"""

from itertools import pairwise

from torch import nn

from fl.models.common import Flattening, ImageShape, ModelInfo, scaled

# Torchvision is imported late: that takes a second and a half, and few processes need it.

EFFICIENTNET_V2_S = (
    # Whether expansion and depthwise convolution are fused; expansion, kernel, stride, channels in
    # and out, blocks.
    (True, 1, 3, 1, 24, 24, 2),
    (True, 4, 3, 2, 24, 48, 4),
    (True, 4, 3, 2, 48, 64, 4),
    (False, 4, 3, 2, 64, 128, 6),
    (False, 6, 3, 1, 128, 160, 9),
    (False, 6, 3, 2, 160, 256, 15),
)
SHUFFLENET_V2 = (24, 116, 232, 464, 1024)
"""Channels of the stem, of three stages and of the last convolution."""
RESNET_50 = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Channels within a block, and blocks, of each stage."""


def efficientnet_v2(image_shape: ImageShape, num_classes: int, width: float = 1.0) -> nn.Module:
    """EfficientNetV2-S (Tan and Le, ICML 2021): images (B, C, H, W) to logits (B, num_classes).

    Channels are multiples of 8. Without stochastic depth, which draws from torch's global stream;
    the server's fit supports no randomness but dropout (:mod:`fl.training.masks`).
    """
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

    stages: list[FusedMBConvConfig | MBConvConfig] = []
    for fused, expansion, kernel, stride, inputs, outputs, count in EFFICIENTNET_V2_S:
        block = FusedMBConvConfig if fused else MBConvConfig
        channels = (MBConvConfig.adjust_channels(c, width) for c in (inputs, outputs))
        stages.append(block(expansion, kernel, stride, *channels, count))
    last = MBConvConfig.adjust_channels(1280, width)
    model = EfficientNet(stages, 0.2, 0.0, num_classes, last_channel=last)
    model.features[0][0] = _stem(image_shape, model.features[0][0].out_channels)
    return model


def mobilenet_v2(image_shape: ImageShape, num_classes: int, width: float = 1.0) -> nn.Module:
    """MobileNetV2 (Sandler et al., CVPR 2018): images (B, C, H, W) to logits (B, num_classes).

    Channels are multiples of 8, and the last 1280 are never fewer, as in the original.
    """
    from torchvision.models.mobilenetv2 import MobileNetV2

    model = MobileNetV2(num_classes, width_mult=width)
    model.features[0][0] = _stem(image_shape, model.features[0][0].out_channels)
    return model


def shufflenet_v2(image_shape: ImageShape, num_classes: int, width: float = 1.0) -> nn.Module:
    """ShuffleNetV2 (Ma et al., ECCV 2018): images (B, C, H, W) to logits (B, num_classes).

    Channels are even, since every block leaves half of them as they are.
    """
    from torchvision.models.shufflenetv2 import ShuffleNetV2

    channels = [2 * scaled(original // 2, width) for original in SHUFFLENET_V2]
    model = ShuffleNetV2([4, 8, 4], channels, num_classes=num_classes)
    model.conv1[0] = _stem(image_shape, channels[0])
    model.maxpool = nn.Identity()
    return model


class ResNet50(Flattening):
    """ResNet-50 (He et al., CVPR 2016): images (B, C, H, W) to logits (B, num_classes)."""

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        from torchvision.models.resnet import Bottleneck

        super().__init__()
        inner = [scaled(channels, width) for channels, _ in RESNET_50]
        outer = [inner[0], *(Bottleneck.expansion * channels for channels in inner)]
        blocks: list[nn.Module] = []
        for stage, (inputs, outputs) in enumerate(pairwise(outer)):
            stride = 1 if stage == 0 else 2
            shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
            blocks.append(Bottleneck(inputs, inner[stage], stride, shortcut))
            blocks += [Bottleneck(outputs, inner[stage]) for _ in range(RESNET_50[stage][1] - 1)]
        self.features = nn.Sequential(
            _stem(image_shape, inner[0]),
            nn.BatchNorm2d(inner[0]),
            nn.ReLU(),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(outer[-1], num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def _stem(image_shape: ImageShape, outputs: int) -> nn.Conv2d:
    stem = nn.Conv2d(image_shape[0], outputs, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out")
    return stem


def _more_than_16(image_shape: tuple[int, ...]) -> bool:
    """Whether four strides of 2 leave two pixels or more, which BatchNorm needs of one image."""
    return min(image_shape[1:]) > 16


MODELS = tuple(
    ModelInfo(name, "classifier", build, _more_than_16, "sides above 16")
    for name, build in (
        ("efficientnet-v2", efficientnet_v2),  # Table 9's global model
        ("resnet50", ResNet50),
        ("mobilenet-v2", mobilenet_v2),
        ("shufflenet-v2", shufflenet_v2),  # HFLDD's
    )
)
