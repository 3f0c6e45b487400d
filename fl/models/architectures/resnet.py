"""ResNet-18 (He et al., CVPR 2016) with the 7x7 stem, as FedAF (CVPR'24, Appendix B) uses it."""

from itertools import pairwise

from torch import Tensor, nn

from fl.models.shapes import Flattening, ImageShape, at_least, scaled


class ResNet18(Flattening):
    """The ImageNet form for images of any size: a 7x7 stem and four stages of two blocks.

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


MODEL = at_least(8, "resnet18", ResNet18)
