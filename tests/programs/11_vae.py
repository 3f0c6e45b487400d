"""A variational autoencoder, by a training loop of one's own at the clients.

Theirs: 169, adap/flower: examples/federated-vae/fedvaeexample/*.py
Differs: Onefold has no setting for a loss.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import onefold

images = load_digits().data / 16
images = images[:, images.std(axis=0) > 0.1]
PIXELS = images.shape[1]


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, 32))
        self.decode = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, PIXELS))

    def forward(self, x):
        return self.decode(self.encode(x).chunk(2, dim=1)[0])

    def loss(self, x):
        mean, log_var = self.encode(x).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * (log_var / 2).exp()
        divergence = (mean.square() + log_var.exp() - 1 - log_var).sum() / 2
        return (F.mse_loss(self.decode(drawn), x, reduction="sum") + 0.01 * divergence) / len(x)


def train(inputs):
    model = VAE()
    model.load_state_dict({n.removeprefix("classifier."): w for n, w in inputs.broadcast.items()})
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    for _ in range(5):
        for x in inputs.shard.images.split(32):
            optimizer.zero_grad()
            model.loss(x).backward()
            optimizer.step()
    return onefold.TaskOutput(tensors=onefold.sent(model))


@onefold.method("fedvae")
def fedvae(clients, server, config, rounds):
    model = onefold.starting_model(config, server)
    for _ in rounds.play(clients, server, model):
        onefold.average(model, clients.map(train, broadcast=onefold.sent(model)), server)
    return rounds.outcome(model)


result = onefold.run(
    data=(images, images),
    model=VAE,
    method=fedvae,
    partition="iid",
    num_clients=3,
    rounds=4,
    runtime="inprocess",
)
print(result.accuracy)  # above 0.3
