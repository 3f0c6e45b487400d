"""Each client trains by DP-SGD: (8, 1e-5)-differential privacy for each of its samples.

Theirs: 207, adap/flower: examples/opacus/opacus_fl/*.py
"""

import onefold

result = onefold.run(
    data="digits",
    model="mlp",
    method="fedavg",
    num_clients=2,
    partition="iid",
    rounds=1,
    classifier={"epochs": 4, "lr": 0.5, "momentum": 0.0, "batch_size": 64},
    dp={"epsilon": 8.0, "delta": 1e-5, "clip": 1.0},
    runtime="inprocess",
)
print(result.figures["dp"])
print(result.accuracy)  # above 0.4
