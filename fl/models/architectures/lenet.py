"""LeNet-5 (LeCun et al., 1998), HFLDD's classifier for MNIST, and FedD2S's M1 and M2 like it."""

from functools import partial
from itertools import pairwise

from torch import nn

from fl.models.shapes import Flattening, ImageShape, at_least, scaled


class LeNet(Flattening):
    """Several times [convolution, ReLU, 2x2 max pooling], and three linear layers.

    Maps images (B, C, H, W) in [0, 1] to logits (B, num_classes). HFLDD's paper says 32x32x3 of
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
            *(nn.Linear(stack[-1] * height * breadth, f1), nn.ReLU()),
            *(nn.Linear(f1, f2), nn.ReLU()),
            nn.Linear(f2, num_classes),
        )


LENET5 = partial(LeNet, channels=(6, 16), hidden=(120, 84), kernel=5, padding=0)
M1 = partial(LeNet, channels=(8, 16, 32), hidden=(32, 16), kernel=3, padding=1)
M2 = partial(LeNet, channels=(16, 64, 128), hidden=(128, 32), kernel=3, padding=1)
MODELS = (at_least(16, "lenet5", LENET5), at_least(8, "m1", M1), at_least(8, "m2", M2))
