"""Several labels on each image; of the network only the last layers are trained.

Theirs: 132, apple/pfl-research: tutorials/Introduction to PFL research with FLAIR.ipynb
Differs: its sections 1 to 3; its network is pretrained.
"""

import numpy as np
from torch import nn

import onefold

draw = np.random.default_rng(0)
labels = draw.integers(0, 2, (600, 4)).astype(np.uint8)
images = draw.random((600, 8, 8, 3)).astype(np.float32) * 0.5
for k in range(4):
    images[labels[:, k] == 1, 2 * k : 2 * k + 2, :, k % 3] += 0.4


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Conv2d(3, 16, 3, padding=1).requires_grad_(False)
        self.last = nn.Linear(16 * 64, num_classes)

    def forward(self, x):
        return self.last(self.features(x).relu().flatten(1))


result = onefold.run(
    data=(images, labels),
    model=Net,
    method="fedavg",
    partition="iid",
    num_clients=5,
    rounds=3,
    classifier={"epochs": 4, "lr": 0.02},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.8
