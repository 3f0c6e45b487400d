"""FEDCVAE-ENS (Heinbaugh et al., ICLR 2023): every client trains a conditional VAE.

The server samples each decoder in proportion to its client's data and by its client's labels, with
z from a truncated normal, and trains a classifier from scratch on the samples. The architectures
are those of FedMHO's Table 1, which calls this FEDCVAE.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import nn

from fl.bounds import Count, Number, OneOf, Positive, Settings, Width
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import RunSpec, Update
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.fusion.synthesis import client_shares, squared_counts
from fl.methods.method import Assignment, Method
from fl.methods.uploads import Decoders, load_label_counts
from fl.models import CLASSIFIERS, GENERATORS, check_classifier
from fl.models.cvae import TruncatedDecoder
from fl.seeding import numpy_generator
from fl.server import Outcome, Samples
from fl.spaces import Choice, LogUniform, Spaces, Uniform
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class FedCVAEConfig(Settings):
    """FEDCVAE's settings, sized for a laptop; the small clients are FedMHO's generator clients."""

    num_large: Number | None = None
    """Clients with the large generator, the first ones; the rest have the small one. Default:
    half. For the homogeneous form of Table 8: all."""
    large_model: Annotated[str, OneOf(GENERATORS)] = "cvae-large"
    """Generator architecture of the large clients."""
    large_width: Width = 0.25
    """Factor on its channels; 1 is the paper's size."""
    large_lr: Positive = 1e-3
    """Its learning rate; all its other settings are those of generator."""
    generator: GeneratorConfig = GeneratorConfig()
    num_samples: Count = 3000
    """Synthetic samples that the classifier learns from."""
    allocation: Literal["client-size", "squared-counts"] = "client-size"
    """Samples per decoder and class: drawn by the client's size and label distribution; or as
    FedMHO's released code does for its FEDCVAE."""
    truncation: Positive = 3.0
    """Bound r of z, whose entries are N(0, 1) truncated to [-r, r]."""
    global_model: Annotated[str, OneOf(CLASSIFIERS)] = "vgg9"
    """Architecture of the global model."""
    global_width: Width = 0.25
    """Factor on its channels and hidden units; 1 is the paper's size."""
    classify: FitConfig = FitConfig(epochs=15, lr=1e-3, batch_size=32)


SPACES = Spaces(
    server={
        "num_samples": Choice((2000, 6000, 12000, 24000)),
        "truncation": Uniform(1.0, 3.0),
        "classify.lr": LogUniform(1e-4, 1e-2),
    },
    local={
        "generator.epochs": Choice((10, 20, 30, 40, 50)),
        "generator.lr": LogUniform(1e-3, 5e-2),
        "generator.latent": Choice((2, 10, 20)),
    },
    epochs="classify.epochs",
)


def assign(config: FedCVAEConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Large generators for client 0 to num_large - 1, small ones for the rest.

    Raises:
        UserError: more large clients than clients, or a model that cannot make these images.
    """
    large = num_clients // 2 if config.num_large is None else config.num_large
    if not 0 <= large <= num_clients:
        raise UserError(f"num_large must be in 0 to {num_clients}, the clients, got {large}")
    small, strong = config.generator, large_generator(config)
    for training in (small, strong):
        training.check(run_spec)
    shape, classes = run_spec.image_shape, run_spec.num_classes
    check_classifier(config.global_model, shape, classes, width=config.global_width)
    return [Assignment("generator", strong if k < large else small) for k in range(num_clients)]


def large_generator(config: FedCVAEConfig) -> GeneratorConfig:
    """The training record of a large client."""
    return replace(
        config.generator,
        model=config.large_model,
        width=config.large_width,
        lr=config.large_lr,
    )


def run(clients: Clients, server: Server, config: FedCVAEConfig) -> Outcome:
    """Algorithm FEDCVAE-ENS; ``start`` is the untrained classifier."""
    updates = clients.train()
    with server.events.phase("synthesis"):
        allocation = allocate(updates, server, config, config.num_samples)
        samples = server.sample(
            truncated(updates, server, config), allocation, latent=config.generator.latent
        )
    return classify(samples, server, config)


def truncated(updates: Sequence[Update], server: Server, config: FedCVAEConfig) -> Decoders:
    """The clients' decoders, with their z truncated."""
    return Decoders(updates, server, lambda own: TruncatedDecoder(own, config.truncation))


def allocate(
    updates: Sequence[Update], server: Server, config: FedCVAEConfig, total: int
) -> np.ndarray:
    """Samples per client and class, (K, classes) int64.

    Raises:
        UserError: no decoder gets a sample.
    """
    counts = np.stack([load_label_counts(u, server) for u in updates])
    if config.allocation == "client-size":
        seed = server.run_spec.seed
        streams = [numpy_generator(seed, "synthesis/labels", u.client.id) for u in updates]
        allocation = client_shares(counts, total, streams)
    else:
        allocation = squared_counts(counts, total)
    if not allocation.any():
        raise UserError(f"num_samples = {total} rounds to none for every decoder")
    return allocation


def classify(samples: Samples, server: Server, config: FedCVAEConfig) -> Outcome:
    """Trains the global model from scratch on labelled samples, by cross-entropy."""
    with server.events.phase("fusion"):
        model = untrained_global(server, config)
        start = server.evaluate(model)
        loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)
        result = server.fit(model, samples, loss=loss, config=config.classify, stage="fusion")
    count = len(samples)
    return Outcome(
        model=model,
        start=start,
        epochs=result.epochs,
        synthetic={
            "images": server.fetch(samples, "images"),
            "labels": server.fetch(samples, "labels"),
            "kept": torch.arange(count),
        },
        figures={"synthetic": {"generated": count, "kept": count}},
    )


def untrained_global(server: Server, config: FedCVAEConfig) -> nn.Module:
    """The global model before any training."""
    shape = ClassifierConfig(model=config.global_model, width=config.global_width)
    return starting_classifier(shape, server.run_spec).to(server.device).eval()


METHOD = Method(
    name="fedcvae-ens",
    config=FedCVAEConfig,
    assign=assign,
    run=run,
    supports_dp=lambda settings: True,
    spaces=SPACES,
)
