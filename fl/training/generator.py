"""Local training of a conditional VAE (Eq. 3): its settings, its starting weights, and the task."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fl.bounds import Count, OneOf, Positive, Settings, Width
from fl.exchange import Tensors, check_forms, num_bytes, prefixed
from fl.federation import Batch, RunSpec, TaskInput, Update
from fl.models.architectures.cvaes import CVAE, Decoder, elbo_losses, one_hot
from fl.models.registry import GENERATORS, build_generator, check_generator, copied
from fl.receiving import Trial, check_label_counts, check_reach, extents, trial_codes, trial_inputs
from fl.seeding import seeded
from fl.training.dense_cvae import gradient_of
from fl.training.optimizers import Adam
from fl.training.recipe import Recipe, epochs_of
from fl.training.task import RecipeTraining


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig(RecipeTraining, Settings):
    """Local training of a generator client (Eq. 3, with Adam).

    It uploads ``decoder.*`` or ``cvae.*``, and ``label_counts``.
    """

    model: Annotated[str, OneOf(GENERATORS)] = "cvae-small"
    """Generator architecture: cvae-small, cvae-large or cvae-cifar."""
    width: Width = 1.0
    """Factor on channels and hidden units; 1 is the paper's size."""
    latent: Count = 20
    """Size of the latent code z."""
    epochs: Count = 80
    """Local epochs."""
    patience: Count | None = None
    """A client stops after this many epochs without a lower training loss. Default: never."""
    lr: Positive = 2e-3
    """Learning rate of Adam."""
    batch_size: Count = 16
    """Samples per step."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Eq. 3 divided by the batch size, or summed over it as in the released code."""
    upload: Literal["decoder", "cvae"] = "decoder"
    """What a client uploads beside its label counts; cvae as in the released code."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """From weights drawn from the seed, on images as they are."""
        model = starting_generator(self, inputs.run_spec).to(inputs.device).train()
        shard = replace(inputs.shard, augment=None)

        def upload() -> Tensors:
            whole = self.upload == "cvae"
            tensors = prefixed("cvae", model) if whole else prefixed("decoder", model.decoder)
            # The local label distribution as exact counts, which the server normalises.
            return {**tensors, "label_counts": shard.label_counts}

        return Recipe(
            model=model,
            losses=_elbo_losses,
            reduction=self.loss_reduction,
            gradient=gradient_of(model, self.loss_reduction),
            optimizer=Adam(self.lr),
            epochs=epochs_of(replace(inputs, shard=shard), self, latent=self.latent),
            patience=self.patience,
            client=inputs.client.id,
            upload=upload,
        )

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` if the generator cannot make such images."""
        check_generator(self.model, run_spec.image_shape)

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """Bytes of the weights."""
        model = starting_generator(self, run_spec)
        return num_bytes(prefixed("", model if self.upload == "cvae" else model.decoder))

    def check_upload(self, update: Update, run_spec: RunSpec) -> None:
        """Raises `ValueError` unless it holds this generator's weights, which training can have
        made and which draw finite images, and the client's label counts."""
        check_label_counts(update, run_spec)
        trial, start, asked = _trial(self, run_spec)
        check_forms(trial.expected, update.tensors, self.upload, update.sender)
        reach = Adam(self.lr).reach(self.steps(update.client.num_samples))
        check_reach(update, self.upload, start, reach)
        trial.check(update, self.upload, *asked)


def starting_generator(config: GeneratorConfig, run_spec: RunSpec) -> CVAE:
    """The weights from which every generator client starts."""
    return copied(_start(config.model, config.width, config.latent, run_spec))


def starting_decoder(config: GeneratorConfig, run_spec: RunSpec) -> Decoder:
    """The decoder of :func:`starting_generator`, without the rest of it."""
    return copied(_start(config.model, config.width, config.latent, run_spec).decoder)


@lru_cache(maxsize=8)
def _start(name: str, width: float, latent: int, run_spec: RunSpec) -> CVAE:
    """Drawn once per process, in channels-last layout, like a classifier's start."""
    shape, classes = run_spec.image_shape, run_spec.num_classes
    with seeded(run_spec.seed, f"start/{name}"):
        model = build_generator(name, shape, classes, latent=latent, width=width)
    return model.to(memory_format=torch.channels_last)


@lru_cache(maxsize=8)
def _trial(
    config: GeneratorConfig, run_spec: RunSpec
) -> tuple[Trial, Mapping[str, float], tuple[Tensor, ...]]:
    """By what an upload is tried: the model, the largest magnitude of its starting weights, and
    what it is asked."""
    shape, classes = run_spec.image_shape, run_spec.num_classes
    with torch.device("meta"):
        shell = build_generator(
            config.model, shape, classes, latent=config.latent, width=config.width
        )
    start = _start(config.model, config.width, config.latent, run_spec)
    codes = trial_codes(config.latent)
    labels = torch.arange(len(codes)) % classes
    if config.upload == "cvae":
        return Trial(shell), extents(start), (trial_inputs(run_spec.inputs), labels, codes)
    return Trial(shell.decoder), extents(start.decoder), (codes, one_hot(labels, classes))


def _elbo_losses(model: nn.Module, batch: Batch) -> Tensor:
    logits, mean, log_variance = model(batch["images"], batch["labels"], batch["noise"])
    return elbo_losses(logits, batch["images"], mean, log_variance)
