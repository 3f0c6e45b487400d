"""Images: arrays of your own, a small CNN of your own, FedAvg over five clients.

python examples/images.py
"""

from sklearn.datasets import load_digits
from torch import nn

import onefold

digits = load_digits()
images = (digits.images / 16).astype("float32")[..., None]  # (N, H, W, channels), from 0 to 1


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, num_classes),
        )

    def forward(self, images):  # (B, channels, H, W)
        return self.layers(images)


result = onefold.run(
    data=(images, digits.target),  # a fifth is held out as the test split
    model=Net,
    method="fedavg",
    num_clients=5,
    alpha=0.5,  # skew of the classes; smaller is more skewed
    rounds=8,
    classifier={"epochs": 2, "lr": 0.05},
    runtime="inprocess",  # without it each client is a Ray actor, on this machine or a cluster
)
print(result)
