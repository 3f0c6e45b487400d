"""Clients with data of their own: each site's samples and test stay with it.

FedPer keeps each site's last layer at home, and is scored on each site's own test.

python examples/own_clients.py
"""

import numpy as np

import onefold

stream = np.random.default_rng(0)


def site(shift, count):
    labels = stream.integers(0, 3, count)
    samples = stream.normal(size=(count, 8)) + 2 * np.eye(3, 8)[labels] + shift
    return samples, labels


data = {
    "Rome": site(0.0, 200),
    "Oslo": site(0.5, 120),
    "Lima": site(-0.5, 80),
}
for method, own in (("fedavg", {}), ("fedper", {"shared_layers": 2})):  # of the mlp's three
    result = onefold.run(data, "mlp", method, rounds=3, name=method, runtime="inprocess", **own)
    print(result)
    print("each site:", result.figures.get("client_accuracy", "by one model for all"), "\n")
