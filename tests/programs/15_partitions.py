"""One data set divided in three ways: how many samples of each class does each client hold?

Theirs: 29, adap/flower: datasets/docs/source/tutorial-use-partitioners.ipynb
Differs: Onefold divides data only in a run, which trains.
"""

import numpy as np
from sklearn.datasets import load_digits

import onefold

data = load_digits(return_X_y=True)
for kind in ("iid", "dirichlet", "classes"):
    result = onefold.run(
        (data, data),
        "mlp",
        "fedavg",
        kind,
        num_clients=5,
        alpha=0.1,
        name=kind,
        classifier={"epochs": 1},
        runtime="inprocess",
    )
    clients = np.load(result.path / "partition.npz")
    own = np.split(clients["train"], clients["train_counts"].cumsum()[:-1])
    print(kind, *(np.bincount(data[1][indices], minlength=10) for indices in own), sep="\n")
print(len(np.unique(data[1][own[0]])))  # above 1
