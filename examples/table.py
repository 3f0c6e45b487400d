"""A table: breast cancer of scikit-learn, 30 numbers and two classes, over five hospitals.

python examples/table.py
"""

from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import onefold

x, y = load_breast_cancer(return_X_y=True)
result = onefold.run(
    data=(StandardScaler().fit_transform(x), y),  # a fifth is held out as the test split
    model="mlp",
    method="fedavg",
    num_clients=5,
    alpha=0.5,  # skew of the classes; smaller is more skewed
    rounds=3,
    classifier={"epochs": 5, "optimizer": "adamw", "lr": 0.003, "weight_decay": 0.01},
    runtime="inprocess",  # without it each client is a Ray actor, on this machine or a cluster
)
print(result)
