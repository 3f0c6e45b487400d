"""scikit-learn's small data sets, and a few that it draws: each by one call, here or on Ray.

python -m tests.onefold.small_sets ray          # all of them; or some, by name
"""

import sys
from typing import Any, Literal

import numpy as np
from sklearn import datasets
from sklearn.preprocessing import scale

import onefold

Runtime = Literal["ray", "inprocess"]
CLASSES = {
    "iris": 0.8,
    "wine": 0.8,
    "breast_cancer": 0.9,
    "digits": 0.8,
}
"""Of those with classes the least accuracy."""
VALUES = {"diabetes": 0.2, "linnerud": -1.0}
"""Of those with values the least R2; linnerud has twenty samples."""
DRAWN = {
    "moons": lambda: datasets.make_moons(300, noise=0.1, random_state=0),
    "circles": lambda: datasets.make_circles(300, noise=0.05, factor=0.4, random_state=0),
    "blobs": lambda: datasets.make_blobs(300, random_state=0),
    "friedman1": lambda: datasets.make_friedman1(300, random_state=0),
    "multilabel": lambda: datasets.make_multilabel_classification(300, 10, random_state=0),
}
LEAST = CLASSES | VALUES | {"moons": 0.8, "circles": 0.8, "blobs": 0.8, "friedman1": 0.4}
LEAST |= {"multilabel": 0.6}


def data_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Samples, standardised, and labels or targets; values are standardised too."""
    if name in DRAWN:
        x, y = DRAWN[name]()
    else:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return scale(x), scale(y) if np.issubdtype(y.dtype, np.floating) else y


def run(name: str, runtime: Runtime, **settings: Any) -> onefold.Result:
    """Runs FedAvg over two clients on the data set."""
    return onefold.run(
        data_of(name),
        "mlp",
        "fedavg",
        "iid",
        num_clients=2,
        rounds=2,
        classifier={"epochs": 15, "optimizer": "adam", "lr": 0.005},
        **{"partition.min_samples": 1},
        name=name,
        runtime=runtime,
        **settings,
    )


if __name__ == "__main__":
    for each in sys.argv[2:] or LEAST:
        print(each, run(each, sys.argv[1], progress=False).accuracy, flush=True)
