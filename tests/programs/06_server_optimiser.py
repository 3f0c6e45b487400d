"""An adaptive server, a tenth of fifty clients in each round, and a rate that falls.

Theirs: 167, adap/flower:
framework/docs/source/tutorial-series-use-a-federated-learning-strategy-pytorch.rst
Differs: theirs is counted without what the page adds to the quickstart.
"""

import onefold

result = onefold.run(
    data="digits",
    model="mlp",
    method="fedadagrad",
    num_clients=50,
    partition="iid",
    participation=0.1,
    rounds=20,
    server_lr=0.02,
    classifier={"epochs": 2, "lr": 0.03, "round_decay": 0.95},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.5
