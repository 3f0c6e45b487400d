"""Rounds end when accuracy has not risen for two of them.

Theirs: 2, TsingZ0/PFLlib: README.md
Differs: an option of main.py, -ab; Onefold has a callback, and no option.
"""

import onefold

seen = []


def stop(event):
    if event.name == "round":
        seen.append(event.accuracy)
        if max(seen) > max(seen[-2:]):
            raise onefold.StopRounds


result = onefold.run(
    data="digits",
    model="mlp",
    method="fedavg",
    num_clients=5,
    rounds=50,
    classifier={"epochs": 2, "lr": 0.03},
    callbacks=[stop],
    runtime="inprocess",
)
print(len(seen), "rounds")
print(result.accuracy)  # above 0.7
