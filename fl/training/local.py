"""Local training of one client: a classifier (Eq. 2) or a conditional VAE (Eq. 3)."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from fl.federation import Problem, TaskInput, TaskOutput
from fl.models import CVAE, build_classifier, build_generator, elbo_loss
from fl.seeding import torch_generator, torch_seeded
from fl.training.config import ClassifierConfig, GeneratorConfig, LocalConfig
from fl.wire import prefixed


def train_local(inputs: TaskInput) -> TaskOutput:
    """Trains what the client's record says; Algorithm 1, lines 3 to 7."""
    match inputs.client.training:
        case ClassifierConfig() as config:
            return _train_classifier(inputs, config)
        case GeneratorConfig() as config:
            return _train_generator(inputs, config)


def starting_classifier(config: ClassifierConfig, problem: Problem) -> nn.Module:
    """The weights from which every client of one architecture starts.

    They follow from the run's seed, so they cost no bytes; without a shared start the average of
    Eq. 4 means nothing.
    """
    with torch_seeded(problem.seed, f"start/{config.model}"):
        return build_classifier(
            config.model, problem.image_shape, problem.num_classes, width=config.width
        )


def starting_generator(config: GeneratorConfig, problem: Problem) -> CVAE:
    """The weights from which every generator client starts."""
    with torch_seeded(problem.seed, f"start/{config.model}"):
        return build_generator(
            config.model,
            problem.image_shape,
            problem.num_classes,
            latent=config.latent,
            width=config.width,
        )


def _train_classifier(inputs: TaskInput, config: ClassifierConfig) -> TaskOutput:
    model = starting_classifier(config, inputs.problem).to(inputs.device).train()
    optimizer = _classifier_optimizer(model, config)
    images = inputs.shard.images.to(inputs.device)
    labels = inputs.shard.labels.to(inputs.device)
    loss_sum = torch.zeros((), device=inputs.device)
    with torch_seeded(inputs.problem.seed, "local/dropout", inputs.client.id):
        for epoch_batches in _epochs(inputs, config):
            loss_sum.zero_()
            for batch in epoch_batches:
                loss = F.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss_sum += loss.detach() * len(batch)
    return TaskOutput(
        tensors=prefixed("classifier", model),
        stats={"train_loss": loss_sum.item() / len(labels)},
    )


def _classifier_optimizer(model: nn.Module, config: ClassifierConfig) -> optim.Optimizer:
    if config.optimizer == "adam":
        return optim.Adam(model.parameters(), lr=config.lr, fused=True)
    return optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum, fused=True)


def _train_generator(inputs: TaskInput, config: GeneratorConfig) -> TaskOutput:
    client, seed = inputs.client, inputs.problem.seed
    model = starting_generator(config, inputs.problem).to(inputs.device).train()
    optimizer = optim.Adam(model.parameters(), lr=config.lr, fused=True)
    images = inputs.shard.images.to(inputs.device)
    labels = inputs.shard.labels.to(inputs.device)
    noise_source = torch_generator(seed, "local/latent", client.id)
    loss_sum = torch.zeros((), device=inputs.device)
    for epoch_batches in _epochs(inputs, config):
        loss_sum.zero_()
        for batch in epoch_batches:
            noise = torch.randn(len(batch), config.latent, generator=noise_source)
            logits, mean, log_variance = model(
                images[batch], labels[batch], noise.to(inputs.device)
            )
            loss = elbo_loss(
                logits, images[batch], mean, log_variance, reduction=config.loss_reduction
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scale = len(batch) if config.loss_reduction == "mean" else 1
            loss_sum += loss.detach() * scale
    uploaded = model if config.upload == "cvae" else model.decoder
    tensors = prefixed("cvae" if config.upload == "cvae" else "decoder", uploaded)
    # The local label distribution, as exact counts: the server divides.
    tensors["label_counts"] = inputs.shard.label_counts
    return TaskOutput(tensors=tensors, stats={"train_loss": loss_sum.item() / len(labels)})


def _epochs(inputs: TaskInput, config: LocalConfig) -> Iterator[tuple[Tensor, ...]]:
    """Per epoch, the shard's sample positions in a fresh order, cut into batches."""
    order = torch_generator(inputs.problem.seed, "local/order", inputs.client.id)
    for _ in range(config.epochs):
        shuffled = torch.randperm(len(inputs.shard), generator=order)
        yield shuffled.to(inputs.device).split(config.batch_size)
