"""A variational autoencoder, by a loss of one's own at the clients.

Theirs: 169, adap/flower: examples/federated-vae/fedvaeexample/*.py
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

    def training_loss(self, x, targets):
        mean, log_var = self.encode(x).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * (log_var / 2).exp()
        divergence = (mean.square() + log_var.exp() - 1 - log_var).sum() / 2
        squares = F.mse_loss(self.decode(drawn), targets, reduction="sum")
        return (squares + 0.01 * divergence) / len(x)


result = onefold.run(
    data=(images, images),
    model=VAE,
    method="fedavg",
    partition="iid",
    num_clients=3,
    rounds=4,
    classifier={"optimizer": "adam", "lr": 0.005, "epochs": 5, "batch_size": 32},
    runtime="inprocess",
)
print(result.accuracy)  # above 0.3
