"""FEDCVAE-KD (Heinbaugh et al., ICLR 2023): the clients' decoders distilled into one.

As FEDCVAE-ENS up to the upload. Then a decoder of the server's own learns to draw what the clients'
decoders draw for the same z and label, and the classifier learns from that decoder's samples, of
which each class has as many as any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, optim

from fl.clients import Clients
from fl.federation import Update
from fl.methods import fedcvae_ens
from fl.methods.fedcvae_ens import (
    FedCVAEConfig,
    allocate,
    assign,
    classify,
    large_generator,
    truncated,
)
from fl.methods.method import Method
from fl.methods.uploads import load_label_counts
from fl.models import Decoder, one_hot, sample
from fl.models.truncated import TruncatedDecoder, truncate
from fl.seeding import torch_generator
from fl.server import Outcome, Samples, Server
from fl.spaces import Choice, LogUniform
from fl.training.generator import starting_generator
from fl.validate import at_least, positive

SERVER = -1
"""The server's own decoder, where decoders are named by client id."""


@dataclass(frozen=True, kw_only=True)
class RegressionConfig:
    """Training of the server's decoder, with Adam."""

    num_samples: int = 3000
    """Images drawn from the clients' decoders."""
    epochs: int = 10
    """Epochs over them."""
    lr: float = 0.01
    """Learning rate."""
    batch_size: int = 32
    """Samples per step."""

    def __post_init__(self) -> None:
        at_least("decoder.num_samples", self.num_samples, 1)
        at_least("decoder.epochs", self.epochs, 1)
        positive("decoder.lr", self.lr)
        at_least("decoder.batch_size", self.batch_size, 1)


@dataclass(frozen=True, kw_only=True)
class FedCVAEKDConfig(FedCVAEConfig):
    """FEDCVAE-KD's settings: those of -ENS, and how the server's decoder trains."""

    truncation: float = 1.0
    """Bound r of z, whose entries are N(0, 1) truncated to [-r, r]."""
    decoder: RegressionConfig = RegressionConfig()


SPACES = replace(
    fedcvae_ens.SPACES,
    server={
        **fedcvae_ens.SPACES.server,
        "decoder.epochs": Choice((5, 10, 20)),
        "decoder.lr": LogUniform(1e-3, 1e-1),
    },
)


def run(clients: Clients, server: Server, config: FedCVAEKDConfig) -> Outcome:
    """Algorithm FEDCVAE-KD; ``start`` is the untrained classifier."""
    updates = clients.train()
    with server.events.phase("synthesis"):
        examples = draw_examples(updates, server, config)
        decoder = regress(examples, server, config)
        samples = draw_uniform(decoder, updates, server, config)
    return classify(samples, server, config)


def draw_examples(
    updates: Sequence[Update], server: Server, config: FedCVAEKDConfig
) -> dict[str, Tensor]:
    """What the clients' decoders draw: ``z`` (N, latent), truncated, ``labels``, ``images``."""
    allocation = allocate(updates, server, config, config.decoder.num_samples)
    parts: dict[str, list[Tensor]] = {"z": [], "labels": [], "images": []}
    for update, counts in zip(updates, allocation, strict=True):
        labels = torch.repeat_interleave(torch.from_numpy(counts)).to(server.device)
        stream = torch_generator(server.problem.seed, "examples", update.client.id)
        noise = torch.randn(len(labels), config.generator.latent, generator=stream)
        teacher = truncated(update, server, config).to(server.device).eval()
        noise = noise.to(server.device)
        parts["z"].append(truncate(noise, config.truncation))
        parts["labels"].append(labels)
        parts["images"] += [
            sample(teacher, *pair) for pair in zip(labels.split(256), noise.split(256), strict=True)
        ]
    return {name: torch.cat(columns) for name, columns in parts.items()}


def regress(examples: dict[str, Tensor], server: Server, config: FedCVAEKDConfig) -> Decoder:
    """A decoder of the large architecture, fresh, that learns to draw the examples."""
    decoder = starting_generator(large_generator(config), server.problem).decoder
    decoder.to(server.device).train()
    optimizer = optim.Adam(decoder.parameters(), lr=config.decoder.lr)
    order = torch_generator(server.problem.seed, "examples/order")
    z, labels, images = (examples[name] for name in ("z", "labels", "images"))
    for _ in range(config.decoder.epochs):
        for rows in torch.randperm(len(z), generator=order).split(config.decoder.batch_size):
            onehot = one_hot(labels[rows], server.problem.num_classes)
            loss = reconstruction(decoder(z[rows], onehot), images[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return decoder.eval()


def reconstruction(logits: Tensor, images: Tensor) -> Tensor:
    """Of image logits and images (B, C, H, W): summed over an image's pixels, mean over the batch.

    Cross-entropy for gray images, squared error for color.
    """
    if images.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits, images, reduction="sum") / len(images)
    return F.mse_loss(logits.sigmoid(), images, reduction="sum") / len(images)


def draw_uniform(
    decoder: Decoder, updates: Sequence[Update], server: Server, config: FedCVAEKDConfig
) -> Samples:
    """The server's decoder's samples: as many of every class that some client holds."""
    held = np.stack([load_label_counts(u, server) for u in updates]).any(axis=0)
    quota = -(-config.num_samples // int(held.sum()))
    decoders = {SERVER: TruncatedDecoder(decoder, config.truncation)}
    allocation = np.where(held, quota, 0)[None]
    return server.sample(decoders, allocation, latent=config.generator.latent)


METHOD = Method(
    name="fedcvae-kd",
    config=FedCVAEKDConfig,
    assign=assign,
    run=run,
    one_rank=True,
    spaces=SPACES,
)
