"""FEDCVAE-KD (Heinbaugh et al., ICLR 2023): the clients' decoders distilled into one.

Up to the upload it is FEDCVAE-ENS. Then the server trains a decoder of its own to draw what the
clients' decoders draw for the same z and label, and the classifier learns from that decoder's
samples, equally many of each class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, Positive, Settings
from fl.clients import Clients
from fl.federation import Batch, Update
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
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
from fl.models import Decoder, one_hot
from fl.models.cvae import TruncatedDecoder, truncate
from fl.server import Outcome, Samples
from fl.spaces import Choice, LogUniform
from fl.training.generator import starting_generator

SERVER = -1
"""The server's own decoder, where decoders are named by client id."""


@dataclass(frozen=True, kw_only=True)
class RegressionConfig(Settings):
    """Training of the server's decoder, with Adam."""

    num_samples: Count = 3000
    """Images drawn from the clients' decoders."""
    epochs: Count = 10
    """Epochs over them."""
    lr: Positive = 0.01
    """Learning rate."""
    batch_size: Count = 32
    """Samples per step."""

    def fit_config(self) -> FitConfig:
        """The settings of the server's fit."""
        return FitConfig(epochs=self.epochs, lr=self.lr, batch_size=self.batch_size)


@dataclass(frozen=True, kw_only=True)
class FedCVAEKDConfig(FedCVAEConfig):
    """FEDCVAE-KD's settings: those of -ENS, and how the server's decoder trains."""

    truncation: Positive = 1.0
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


def draw_examples(updates: Sequence[Update], server: Server, config: FedCVAEKDConfig) -> Samples:
    """What the clients' decoders draw: ``z`` (N, latent), truncated, ``labels``, ``images``."""
    allocation = allocate(updates, server, config, config.decoder.num_samples)
    decoders = truncated(updates, server, config)
    latent = config.generator.latent
    drawn = server.sample(decoders, allocation, latent=latent, stream="examples", with_z=True)
    return server.apply(drawn, "z", Truncation(config.truncation))


@dataclass(frozen=True)
class Truncation:
    """Truncates noise as a truncated decoder does: a function that can be pickled."""

    bound: float

    def __call__(self, z: Tensor) -> Tensor:
        return truncate(z, self.bound)


def regress(examples: Samples, server: Server, config: FedCVAEKDConfig) -> Decoder:
    """A new decoder of the large architecture, trained to draw the examples."""
    decoder = starting_generator(large_generator(config), server.run_spec).decoder
    server.fit(
        decoder.to(server.device),
        examples,
        loss=RegressionLoss(server.run_spec.num_classes),
        config=config.decoder.fit_config(),
        stage="examples",
        tested=False,
    )
    return decoder


@dataclass(frozen=True)
class RegressionLoss:
    """How far a decoder's image for ``z`` and ``labels`` is from ``images``."""

    num_classes: int

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        onehot = one_hot(batch["labels"], self.num_classes)
        return reconstruction(model(batch["z"], onehot), batch["images"])


def reconstruction(logits: Tensor, images: Tensor) -> Tensor:
    """Loss of image logits and images (B, C, H, W): summed over pixels, mean over the batch.

    Cross-entropy for gray images, squared error for color.
    """
    if images.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits, images, reduction="sum") / len(images)
    return F.mse_loss(logits.sigmoid(), images, reduction="sum") / len(images)


def draw_uniform(
    decoder: Decoder, updates: Sequence[Update], server: Server, config: FedCVAEKDConfig
) -> Samples:
    """The server's decoder's samples: as many of every class that some client has."""
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
    supports_dp=lambda settings: True,
    spaces=SPACES,
)
