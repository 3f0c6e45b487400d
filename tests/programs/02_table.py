"""A table with words, numbers and a gap: the columns made numbers, then FedAvg over three banks.

Theirs: 143, adap/flower: examples/fl-tabular/fltabular/*.py
"""

import numpy as np
import pandas as pd
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

import onefold

draw = np.random.default_rng(0)
people = pd.DataFrame(
    {
        "age": draw.integers(18, 80, 600).astype(float),
        "hours": draw.normal(40, 10, 600),
        "school": draw.choice(["none", "school", "university"], 600),
    }
)
people["rich"] = (people.hours > 40) | (people.school == "university")
people.loc[0, "age"] = np.nan

people = people.dropna()
people["school"] = OrdinalEncoder().fit_transform(people[["school"]])
numbers = StandardScaler().fit_transform(people.drop(columns="rich"))
result = onefold.run(
    data=(numbers, people.rich.astype(int)),
    model="mlp",
    method="fedavg",
    num_clients=3,
    rounds=3,
    classifier={"epochs": 10, "optimizer": "adam", "lr": 0.01},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.85
