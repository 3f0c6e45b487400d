"""The small classifier of FedMHO (WWW'26, Table 2), in its three forms."""

from itertools import pairwise

from torch import nn

from fl.models.shapes import Flattening, ImageShape, at_least, paper_form, scaled

CHANNELS = {"mnist": (10, 20), "emnist": (16, 32, 64, 128, 128), "svhn": (16, 32, 64, 128)}
"""Of MNIST's unpadded 5x5 convolutions, and of the others' 3x3 ones; the first three are pooled."""


class CNN(Flattening):
    """The paper's CNN for MNIST and FMNIST, for EMNIST, or for SVHN, whichever suits the images.

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


MODEL = at_least(8, "cnn", CNN)
