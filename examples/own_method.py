"""A method of your own: FedAvgM, FedAvg with momentum at the server (Hsu et al., 2019).

python examples/own_method.py
"""

from dataclasses import dataclass

import torch

import onefold
from onefold.methods import OneClassifier


@dataclass(frozen=True, kw_only=True)
class Settings(OneClassifier):
    beta: float = 0.7
    """Momentum of the server."""


@onefold.method("fedavgm", config=Settings)
def fedavgm(clients, server, config, *, rounds):
    model = onefold.starting_model(config, server)
    velocity = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    for _ in rounds.play(clients, server, model, velocity):
        before = {name: w.detach().clone() for name, w in model.named_parameters()}
        updates = clients.train(broadcast=clients.to_send(onefold.sent(model)))
        onefold.average(model, updates)
        with torch.no_grad():
            for name, w in model.named_parameters():
                velocity[name].mul_(config.beta).add_(w - before[name])
                w.copy_(before[name] + velocity[name])
    return rounds.outcome(model)


table = onefold.grid(
    {"method": ["fedavg", fedavgm], "seed": [0, 1]},
    data="digits",
    model="cnn",
    num_clients=5,
    rounds=2,
    classifier={"epochs": 2},
    runtime="inprocess",
)
print(table)
