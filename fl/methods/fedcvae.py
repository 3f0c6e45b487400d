"""FEDCVAE (Heinbaugh et al., ICLR 2023): every client trains a conditional VAE.

FEDCVAE-ENS: the server samples each decoder in proportion to its client's data and by its client's
labels, with z from a truncated normal, and trains a classifier from scratch on the samples. The
architectures are those of FedMHO's Table 1, which calls this FEDCVAE.

FEDCVAE-KD: the server trains a decoder of its own to draw what the clients' decoders draw for the
same z and label, and the classifier learns from that decoder's samples, equally many of each class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, Number, OneOf, Positive, Settings, Width
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Batch, RunSpec, Update
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.fusion.synthesis import client_shares, squared_counts
from fl.methods.method import Assignment, Choice, Distribution, LogUniform, Method, Spaces, Uniform
from fl.methods.uploads import decoders_of, label_counts_of, untrained_classifier
from fl.models.architectures.cvaes import Decoder, TruncatedDecoder, one_hot, truncate
from fl.models.registry import CLASSIFIERS, GENERATORS, check_classifier
from fl.seeding import numpy_generator
from fl.server import Outcome, Samples
from fl.training.classifier import ClassifierConfig
from fl.training.generator import GeneratorConfig, starting_generator


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
        config.generator, model=config.large_model, width=config.large_width, lr=config.large_lr
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


def truncated(
    updates: Sequence[Update], server: Server, config: FedCVAEConfig
) -> Mapping[int, Decoder]:
    """The clients' decoders, with their z truncated."""
    return decoders_of(updates, server, lambda own: TruncatedDecoder(own, config.truncation))


def allocate(
    updates: Sequence[Update], server: Server, config: FedCVAEConfig, total: int
) -> np.ndarray:
    """Samples per client and class, (K, classes) int64.

    Raises:
        UserError: no decoder gets a sample.
    """
    counts = label_counts_of(updates)
    if config.allocation == "client-size":
        seed = server.run_spec.seed
        streams = [numpy_generator(seed, "synthesis/labels", u.client.id) for u in updates]
        allocation = client_shares(counts, total, streams)
    else:
        allocation = squared_counts(counts, total)
    if not allocation.any():
        raise UserError(f"num_samples {total} is too few: each decoder gets none")
    return allocation


def classify(samples: Samples, server: Server, config: FedCVAEConfig) -> Outcome:
    """Trains the global model from scratch on labelled samples, by cross-entropy."""
    with server.events.phase("fusion"):
        wanted = ClassifierConfig(model=config.global_model, width=config.global_width)
        model = untrained_classifier(wanted, server)
        start = server.evaluate(model)
        loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)
        result = server.fit(model, samples, loss=loss, config=config.classify, stage="fusion")
    count = len(samples)
    return Outcome(
        model=model,
        start=start,
        epochs=result.epochs,
        synthetic=server.pictures(samples, torch.arange(count)),
        figures={"synthetic": {"generated": count, "kept": count}},
    )


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


def run_kd(clients: Clients, server: Server, config: FedCVAEKDConfig) -> Outcome:
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
    return server.apply(drawn, "z", partial(truncate, bound=config.truncation))


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
    held = label_counts_of(updates).any(axis=0)
    quota = -(-config.num_samples // int(held.sum()))
    decoders = {SERVER: TruncatedDecoder(decoder, config.truncation)}
    allocation = np.where(held, quota, 0)[None]
    return server.sample(decoders, allocation, latent=config.generator.latent)


ENS = Method(
    name="fedcvae-ens",
    config=FedCVAEConfig,
    assign=assign,
    run=run,
    supports_dp=lambda settings: True,
    spaces=SPACES,
)
KD_SERVER: dict[str, Distribution] = {
    "decoder.epochs": Choice((5, 10, 20)),
    "decoder.lr": LogUniform(1e-3, 1e-1),
}
METHODS = [
    ENS,
    replace(
        ENS,
        name="fedcvae-kd",
        config=FedCVAEKDConfig,
        run=run_kd,
        spaces=replace(SPACES, server={**SPACES.server, **KD_SERVER}),
    ),
]
