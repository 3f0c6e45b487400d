"""Devices that each have a file of their own; a fifth of each is a test.

Theirs: 142, adap/flower: examples/embedded-devices/embeddedexample/*.py
Differs: theirs runs on real devices over a network; Onefold on one machine or a cluster.
"""

import numpy as np

import onefold

draw = np.random.default_rng(0)
for name in ("kitchen", "garage", "attic"):
    labels = draw.integers(0, 3, 100)
    samples = draw.normal(size=(100, 8)) + 2 * np.eye(3, 8)[labels]
    np.savez(f"{name}.npz", samples=samples, labels=labels)

files = {name: np.load(f"{name}.npz") for name in ("kitchen", "garage", "attic")}
result = onefold.run(
    data={name: (file["samples"], file["labels"]) for name, file in files.items()},
    model="mlp",
    method="fedavg",
    rounds=3,
    classifier={"epochs": 5},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.7
