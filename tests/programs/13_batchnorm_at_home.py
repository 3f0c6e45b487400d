"""FedBN: batch normalisation stays with each client, whose images are of another brightness.

Theirs: 167, adap/flower: framework/docs/source/how-to-implement-fedbn.rst
Differs: theirs without what the page adds to the quickstart.
"""

from sklearn.datasets import load_digits
from torch import nn

import onefold


def net(num_classes):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(num_classes)
    )


digits = load_digits()
images = (digits.images / 16).astype("float32")[..., None]
data = {
    name: (images[k::3] * bright, digits.target[k::3])
    for k, (name, bright) in enumerate({"dark": 0.2, "dim": 0.5, "light": 1.0}.items())
}
result = onefold.run(
    data, net, "fedbn", rounds=4, classifier={"epochs": 2, "lr": 0.05}, runtime="inprocess"
)
print(result.accuracy)  # above 0.7
