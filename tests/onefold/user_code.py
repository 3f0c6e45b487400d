"""A user's script, data and model, as the tests of the door use them."""

import numpy as np

SCRIPT = """
import sys

import numpy as np
import torch
from torch import nn

import onefold


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))

    def forward(self, images):
        return self.layers(images)


@onefold.method("fedmedian")
def fedmedian(clients, server, config, rounds):
    model = onefold.starting_model(config, server)
    for number in rounds.play(clients, server, model):
        updates = clients.train(broadcast=onefold.sent(model) if number > 1 else None)
        states = [onefold.received(update, server).state_dict() for update in updates]
        median = {n: torch.stack([s[n] for s in states]).median(0).values for n in states[0]}
        model.load_state_dict(median)
    return rounds.outcome(model)


data = np.load("data.npz")
if __name__ == "__main__":
    result = onefold.run(
        data=(data["images"], data["labels"]), model=Net, method=fedmedian,
        partition="iid", num_clients=4, rounds=2,
        classifier={"epochs": 2, "batch_size": 8}, runtime=sys.argv[1], name=sys.argv[1],
        progress=False, max_actors=2,
    )
    print(result.accuracy, result.model.layers[1].weight.double().sum().item())
"""


def blobs(count: int = 120, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 8, 8, 3) in [0, 1] whose brightness tells the class, and labels (N,)."""
    labels = np.random.default_rng(0).integers(0, classes, count)
    noise = np.random.default_rng(1).random((count, 8, 8, 3)) * 0.2
    return noise + labels[:, None, None, None] * 0.25, labels
