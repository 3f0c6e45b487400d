"""A first run: images, a CNN of one's own, FedAvg with a test after each round, the saved model.

Theirs: 167, adap/flower: examples/quickstart-pytorch/pytorchexample/*.py
"""

from torch import nn

import onefold


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(num_classes),
        )

    def forward(self, images):
        return self.layers(images)


result = onefold.run(
    data="digits",
    model=Net,
    method="fedavg",
    partition="iid",
    num_clients=5,
    rounds=3,
    classifier={"epochs": 2, "lr": 0.03},
    runtime="inprocess",
)
model = onefold.load_model(result.path)
print(result.accuracy)  # above 0.8
