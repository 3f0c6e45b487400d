"""Regression: diabetes of scikit-learn, with a network of your own; the score is R2.

python examples/regression.py
"""

from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale
from torch import nn

import onefold


class Net(nn.Module):
    def __init__(self, shape, num_classes):  # num_classes: how many numbers are predicted
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(shape[0], 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, num_classes)
        )

    def forward(self, x):
        return self.layers(x)


x, y = load_diabetes(return_X_y=True)
result = onefold.run(
    data=(scale(x), scale(y)),  # floats as targets: values, by squared error
    model=Net,
    method="fedprox",
    partition="iid",
    num_clients=4,
    rounds=3,
    classifier={"epochs": 10, "optimizer": "adam", "lr": 0.005, "schedule": "cosine"},
    runtime="inprocess",
)
print(result)
