"""Local training of one client: a classifier (Eq. 2) or a conditional VAE (Eq. 3)."""

from collections.abc import Iterator
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.condensation.config import LocalCondensation
from fl.federation import Batch, Problem, TaskInput
from fl.models import CVAE, build_classifier, build_generator, copied, elbo_losses
from fl.seeding import torch_seeded
from fl.training.config import ClassifierConfig, GeneratorConfig
from fl.training.optimizers import SGD, Adam, Proximal
from fl.training.recipe import Epoch, Recipe
from fl.training.task import task_of
from fl.wire import Tensors, load_prefixed, prefixed

Architecture = ClassifierConfig | LocalCondensation
"""Records that name a classifier's ``model`` and its ``width``."""


@task_of
def train_local(inputs: TaskInput) -> Recipe:
    """Trains what the client's record says; Algorithm 1, lines 3 to 7.

    A classifier starts from the weights ``classifier.*`` that the server sent; where it sent none,
    from those that follow from the seed.
    """
    match inputs.client.training:
        case ClassifierConfig() as config:
            return _classifier(inputs, config)
        case GeneratorConfig() as config:
            return _generator(inputs, config)
        case other:
            raise TypeError(f"{type(other).__name__} is no training of a model")


def starting_classifier(config: Architecture, problem: Problem) -> nn.Module:
    """The weights from which every client of one architecture starts.

    They follow from the run's seed, so they cost no bytes; without a shared start the average of
    Eq. 4 means nothing.
    """
    return copied(_start(config.model, config.width, None, problem))


def received_classifier(inputs: TaskInput, config: Architecture) -> nn.Module:
    """The weights ``classifier.*`` that the server sent, or the start, on the client's device."""
    model = starting_classifier(config, inputs.problem)
    received = {**inputs.broadcast, **inputs.payload}
    if any(name.startswith("classifier.") for name in received):
        load_prefixed(model, received, "classifier", sender="the server")
    return model.to(inputs.device)


def starting_generator(config: GeneratorConfig, problem: Problem) -> CVAE:
    """The weights from which every generator client starts."""
    model = _start(config.model, config.width, config.latent, problem)
    assert isinstance(model, CVAE)
    return copied(model)


@lru_cache(maxsize=8)
def _start(name: str, width: float, latent: int | None, problem: Problem) -> nn.Module:
    """Drawn once a process: a thousand light clients train faster than their start is drawn.

    In channels-last layout, which copies keep: convolutions are faster in it.
    """
    shape, classes = problem.image_shape, problem.num_classes
    with torch_seeded(problem.seed, f"start/{name}"):
        if latent is None:
            model = build_classifier(name, shape, classes, width=width)
        else:
            model = build_generator(name, shape, classes, latent=latent, width=width)
    return model.to(memory_format=torch.channels_last)


def _classifier(inputs: TaskInput, config: ClassifierConfig) -> Recipe:
    model = received_classifier(inputs, config).train()
    adam = config.optimizer == "adam"
    optimizer = Adam(config.lr) if adam else SGD(config.lr, config.momentum)
    return Recipe(
        model=model,
        losses=_cross_entropies,
        optimizer=Proximal(optimizer, config.proximal) if config.proximal else optimizer,
        epochs=_epochs(inputs, config),
        patience=config.patience,
        upload=lambda: prefixed("classifier", model),
    )


def _cross_entropies(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["images"]), batch["labels"], reduction="none")


def _generator(inputs: TaskInput, config: GeneratorConfig) -> Recipe:
    model = starting_generator(config, inputs.problem).to(inputs.device).train()
    label_counts = inputs.shard.label_counts

    def upload() -> Tensors:
        whole = config.upload == "cvae"
        tensors = prefixed("cvae", model) if whole else prefixed("decoder", model.decoder)
        # The local label distribution, as exact counts: the server divides.
        return {**tensors, "label_counts": label_counts}

    return Recipe(
        model=model,
        losses=_elbo_losses,
        reduction=config.loss_reduction,
        optimizer=Adam(config.lr),
        epochs=_epochs(inputs, config, latent=config.latent),
        patience=config.patience,
        upload=upload,
    )


def _elbo_losses(model: nn.Module, batch: Batch) -> Tensor:
    logits, mean, log_variance = model(batch["images"], batch["labels"], batch["noise"])
    return elbo_losses(logits, batch["images"], mean, log_variance)


def _epochs(
    inputs: TaskInput, config: ClassifierConfig | GeneratorConfig, latent: int | None = None
) -> Iterator[Epoch]:
    """Per epoch, the shard's samples in a fresh order, cut into batches, with noise on demand."""
    device = inputs.device
    images, labels = inputs.shard.images.to(device), inputs.shard.labels.to(device)
    order, noise = inputs.stream("local/order"), inputs.stream("local/latent")

    def batches() -> Epoch:
        shuffled = torch.randperm(len(labels), generator=order).to(device)
        for positions in shuffled.split(config.batch_size):
            batch = {"images": images[positions], "labels": labels[positions]}
            if latent is not None:
                drawn = torch.randn(len(positions), latent, generator=noise)
                batch["noise"] = drawn.to(device)
            yield batch

    return (batches() for _ in range(config.epochs))
