"""Many users, the number of whose samples follows a Poisson law; a cohort is drawn each round.

Theirs: 107, apple/pfl-research:
tutorials/Introduction to Federated Learning with CIFAR10 and TensorFlow.ipynb
Differs: theirs adds noise at the server, as 10 does.
"""

import numpy as np
from sklearn.datasets import load_digits

import onefold

draw = np.random.default_rng(0)
digits = load_digits()
test, train = np.split(draw.permutation(len(digits.target)), [400])
pairs = [(digits.data[part] / 16, digits.target[part]) for part in (train, test)]
users = np.split(np.arange(len(train)), draw.poisson(20, 60).cumsum())[:-1]
result = onefold.run(
    data=pairs,
    model="mlp",
    method="fedavg",
    partition=users,
    participation=0.1,
    rounds=10,
    classifier={"epochs": 5, "lr": 0.02, "batch_size": 5},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.6
