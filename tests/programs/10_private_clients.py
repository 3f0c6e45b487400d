"""Privacy of a whole client: the server cuts each update to one length and adds noise to the sum.

Theirs: 180, adap/flower: examples/fl-dp-sa/fl_dp_sa/*.py
Differs: Onefold has no such setting, and no secure aggregation, which theirs adds.
"""

import torch
from opacus.accountants.utils import get_noise_multiplier
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import onefold

ROUNDS, CLIENTS, CLIP = 5, 50, 0.5
SIGMA = get_noise_multiplier(
    target_epsilon=20.0, target_delta=1e-2, sample_rate=1.0, steps=ROUNDS, accountant="rdp"
)


@onefold.method("private-fedavg")
def private_fedavg(clients, server, config, rounds):
    model = onefold.starting_model(config, server)
    for _ in rounds.play(clients, server, model):
        updates = clients.train(broadcast=clients.to_send(onefold.sent(model)))
        start = parameters_to_vector(model.parameters()).detach()
        moved = [onefold.received(update, server) for update in updates]
        moves = torch.stack([parameters_to_vector(m.parameters()).detach() - start for m in moved])
        moves *= (CLIP / moves.norm(dim=1, keepdim=True)).clamp(max=1)
        noise = torch.randn_like(start) * SIGMA * CLIP
        vector_to_parameters(start + (moves.sum(0) + noise) / CLIENTS, model.parameters())
    return rounds.outcome(model)


def logistic(num_classes):
    return nn.Linear(64, num_classes)


digits = load_digits()
result = onefold.run(
    data=(digits.data / 16, digits.target),
    model=logistic,
    method=private_fedavg,
    num_clients=CLIENTS,
    partition="iid",
    rounds=ROUNDS,
    classifier={"epochs": 5, "lr": 0.1},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.5
