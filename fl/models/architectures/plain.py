"""Classifiers of plain layers in a row: FedMHO's small CNN and VGG-9, LeNets, a perceptron."""

from functools import partial
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from fl.models.common import Flattening, ImageShape, ModelInfo, at_least, paper_form, scaled

CHANNELS = {"mnist": (10, 20), "emnist": (16, 32, 64, 128, 128), "svhn": (16, 32, 64, 128)}
"""Of the CNN: MNIST's unpadded 5x5 convolutions, the others' 3x3; the first three are pooled."""


class CNN(Flattening):
    """FedMHO's small classifier (WWW'26, Table 2): its CNN for MNIST and FMNIST, for EMNIST, or for
    SVHN, whichever suits the images.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes), never through a softmax: FedMHO's
    code has one in the MNIST form, which flattens the cross-entropy's gradient and would mix
    probabilities with VGG-9's logits in a teacher.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        form = paper_form(image_shape, num_classes)
        channels = [scaled(own, width) for own in CHANNELS[form]]
        kernel, padding = (5, 0) if form == "mnist" else (3, 1)
        layers: list[nn.Module] = []
        for depth, (inputs, outputs) in enumerate(pairwise([image_shape[0], *channels])):
            layers += [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU()]
            if depth < 3:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        pixels = 4 * 4 if form == "mnist" else (image_shape[1] // 8) * (image_shape[2] // 8)
        self.classifier = nn.Linear(channels[-1] * pixels, num_classes)


POOLED = 7  # side of the feature map that the first fully connected layer sees


class VGG9(nn.Module):
    """FedMHO's large classifier (WWW'26, Table 2): four 3x3 convolutions and three fully connected
    layers, without batch normalisation.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). H and W are at least 8: three
    poolings halve them. Dropout is on in train mode, as FedMHO's server uses it.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        c1, c2, c3 = (scaled(channels, width) for channels in (64, 128, 256))
        hidden = scaled(4096, width)
        self.map_shape = (image_shape[1] // 8, image_shape[2] // 8)  # of what is enlarged
        self.features = nn.Sequential(
            *_convolution(image_shape[0], c1),
            nn.MaxPool2d(2),
            *_convolution(c1, c2),
            nn.MaxPool2d(2),
            *_convolution(c2, c3),
            *_convolution(c3, c3),
            nn.MaxPool2d(2),
            # Enlarges the 3x3 or 4x4 map that 28- or 32-pixel images leave here.
            nn.AdaptiveAvgPool2d(POOLED),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            *(*_linear(c3 * POOLED**2, hidden), nn.Dropout(0.5)),
            *(*_linear(hidden, hidden), nn.Dropout(0.5)),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W)."""
        return self.classifier(self.features(images))


class LeNet(Flattening):
    """Several times [convolution, ReLU, 2x2 max pooling], and three linear layers.

    LeNet-5 (LeCun et al., 1998), HFLDD's classifier for MNIST, and FedD2S's M1 and M2 like it. Maps
    images (B, C, H, W) in [0, 1] to logits (B, num_classes). HFLDD's paper says 32x32x3 of
    LeNet-5's input; MNIST's images are taken as they are, 28x28x1. FedD2S's paper (Section IV-A)
    says nothing of pooling; by it the layers of M1 and M2 have its sizes.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        width: float = 1.0,
        *,
        channels: tuple[int, ...],
        hidden: tuple[int, int],
        kernel: int,
        padding: int,
    ) -> None:
        super().__init__()
        stack = [image_shape[0], *(scaled(count, width) for count in channels)]
        height, breadth = image_shape[1:]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(stack):
            convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding)
            layers += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
            height, breadth = ((s + 2 * padding - kernel + 1) // 2 for s in (height, breadth))
        self.features = nn.Sequential(*layers)
        f1, f2 = (scaled(count, width) for count in hidden)
        self.classifier = nn.Sequential(
            *_linear(stack[-1] * height * breadth, f1),
            *_linear(f1, f2),
            nn.Linear(f2, num_classes),
        )


class MLP(nn.Module):
    """A multilayer perceptron, for tables and whatever else is a vector of numbers: two hidden
    layers of 128 and 64 units with ReLU, of the samples' values in one row.

    Maps samples (B, ...) of floats to logits (B, num_classes).
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        first, second = scaled(128, width), scaled(64, width)
        self.features = nn.Sequential(*_linear(prod(shape), first), *_linear(first, second))
        self.classifier = nn.Linear(second, num_classes)

    def forward(self, samples: Tensor) -> Tensor:
        """Logits (B, num_classes) of samples (B, ...)."""
        return self.classifier(self.features(samples.flatten(1).float()))


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()


def _linear(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.ReLU()


LENET5 = partial(LeNet, channels=(6, 16), hidden=(120, 84), kernel=5, padding=0)
M1 = partial(LeNet, channels=(8, 16, 32), hidden=(32, 16), kernel=3, padding=1)
M2 = partial(LeNet, channels=(16, 64, 128), hidden=(128, 32), kernel=3, padding=1)
MODELS = (
    at_least(8, "cnn", CNN),
    at_least(8, "vgg9", VGG9),
    at_least(16, "lenet5", LENET5),
    at_least(8, "m1", M1),
    at_least(8, "m2", M2),
    ModelInfo("mlp", "classifier", MLP, lambda shape: len(shape) > 0, "numbers", images=False),
)
