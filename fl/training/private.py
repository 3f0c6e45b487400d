"""Local training with differential privacy, DP-SGD (Abadi et al., CCS 2016): records and task.

Each step takes every sample with the same probability (Poisson batches, as the accountant has it),
cuts each sample's gradient to norm C, adds noise N(0, (sigma C)^2) to their sum, and divides by the
expected size of a batch. The optimiser's step then follows; it looks at no data. Neither the losses
nor their mean leave the client, since no noise hides them.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fl.bounds import Positive, Settings, Within
from fl.errors import UserError
from fl.federation import Batch, RunSpec, Task, TaskInput, TaskOutput, Training
from fl.models.common import AnyBatchNorm
from fl.seeding import in_round, seeded
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.generator import GeneratorConfig, starting_generator
from fl.training.recipe import EpochTraining, LossesOf, Recipe, optimizer_of, parts_of

# The settings of differential privacy, and the noise that a budget needs, by Opacus' accountant. A
# client's upload is (epsilon, delta)-private towards each of its samples, added or removed.

ACCOUNTANT = "rdp"
"""Renyi differential privacy, an upper bound on what is spent. Opacus' PRV accountant is tighter,
and took too long to wait for when it was tried."""


@dataclass(frozen=True, kw_only=True)
class DpConfig(Settings):
    """Local training of classifiers and generators with differential privacy (DP-SGD)."""

    epsilon: Positive | None = None
    """Budget of each client over all rounds, for each of its samples. Default: no privacy."""
    delta: Annotated[float, Within(0, 1, "()")] = 1e-5
    """Probability that epsilon does not hold; choose far below 1 / (a client's samples)."""
    clip: Positive = 1.0
    """Largest norm of a sample's gradient; longer ones are scaled to it."""
    noise_from_seed: bool = False
    """Draw noise and batches from the seed, to repeat a run bit by bit, as tests do: who knows the
    seed, which config.yaml names, can take the noise off, so nothing is private. Default: from the
    operating system; the same seed then gives another model each time."""

    def check_further(self) -> None:
        """The accountant's package is there, if it is needed; and nothing is set in vain."""
        if self.epsilon is None and any(getattr(self, f.name) != f.default for f in fields(self)):
            raise UserError(
                "epsilon is missing: without it the other settings of dp have no effect"
            )
        if self.epsilon is not None and find_spec("opacus") is None:
            raise UserError("epsilon needs Opacus: pip install 'onefold[dp]'")


@dataclass(frozen=True)
class Sampling:
    """How often a sample takes part: each step takes it with probability ``rate``."""

    rate: float
    steps: int

    @classmethod
    def of(cls, num_samples: int, batch_size: int, epochs: int) -> "Sampling":
        """Poisson batches of ``batch_size`` samples on average, as many steps as there are batches
        in so many epochs."""
        rate = min(1.0, batch_size / num_samples)
        return cls(rate, epochs * math.ceil(num_samples / batch_size))


@cache
def noise_for(epsilon: float, delta: float, sampling: Sampling) -> tuple[float, float]:
    """The noise multiplier that keeps to the budget, and the epsilon that is then spent.

    Raises:
        UserError: no amount of noise that training could survive does.
    """
    from opacus.accountants import create_accountant
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the largest: a looser bound
        try:
            noise = get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=sampling.rate,
                steps=sampling.steps,
                accountant=ACCOUNTANT,
                epsilon_tolerance=min(0.01, epsilon / 100),
            )
        except ValueError as error:
            raise UserError(f"dp.epsilon {epsilon:g} with delta {delta:g}: {error}") from None
        accountant = create_accountant(mechanism=ACCOUNTANT)
        accountant.history = [(noise, sampling.rate, sampling.steps)]
        return noise, float(accountant.get_epsilon(delta=delta))


MOST_AT_ONCE = 32
"""Samples whose gradients are held at once."""


@dataclass(frozen=True, kw_only=True)
class _PrivateTraining(EpochTraining):
    """What both private records have beside the settings of that without privacy."""

    epsilon: float
    delta: float
    clip: float
    noise_from_seed: bool
    rounds: int
    """Rounds over which the budget is spent."""
    noise: float | None = field(default=None, compare=False)
    """The noise multiplier sigma, which follows from the budget and the client's samples: so it
    makes no other training of it. It is set when the samples are counted."""
    spent: float | None = field(default=None, compare=False)
    """The epsilon that training in all rounds spends with it."""

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_privately

    start: ClassVar[Callable[[Any, RunSpec], nn.Module]]
    """Method that makes the model with its first weights."""

    def for_samples(self, num_samples: int) -> Self:
        """The record with the noise of a client that has so many samples."""
        sampling = Sampling.of(num_samples, self.batch_size, self.epochs * self.rounds)
        noise, spent = noise_for(self.epsilon, self.delta, sampling)
        return replace(self, noise=noise, spent=spent)

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """See :class:`fl.federation.Training`."""
        short, samples = super().probe(steps, num_classes)
        return replace(short, noise=1.0, spent=0.0), samples

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` for images that the model cannot take, or make, and for what lets a
        sample through that no noise hides."""
        super().check(run_spec)  # type: ignore[safe-super]  # the other parent's
        if any(getattr(self, setting, None) for setting in ("patience", "validation")):
            raise UserError("dp.epsilon excludes patience and validation: they use exact losses")
        for name, layer in self.start(run_spec).named_modules():
            # What a module of the user's keeps may be a constant: training shows whether it is.
            of_torch = type(layer).__module__.startswith("torch.")
            if isinstance(layer, AnyBatchNorm) or (of_torch and [*layer.buffers(recurse=False)]):
                raise UserError(
                    f"dp.epsilon cannot train {self.model}: its {name or 'whole'} is a "
                    f"{type(layer).__name__}, which mixes samples or stores statistics of them"
                )


@dataclass(frozen=True, kw_only=True)
class PrivateClassifier(_PrivateTraining, ClassifierConfig):
    """A classifier client that trains by DP-SGD; it uploads ``classifier.*``."""

    start = starting_classifier


@dataclass(frozen=True, kw_only=True)
class PrivateGenerator(_PrivateTraining, GeneratorConfig):
    """A generator client that trains by DP-SGD; its label counts are uploaded as they are."""

    start = starting_generator


RECORDS = {ClassifierConfig: PrivateClassifier, GeneratorConfig: PrivateGenerator}
"""The private record for each that there is one for."""


def private(training: Training, dp: DpConfig, rounds: int, run_spec: RunSpec) -> Training:
    """The record of a client that trains as this one does, with differential privacy.

    Raises:
        UserError: there is none, or its model cannot be trained so.
    """
    record = RECORDS.get(type(training))
    if record is None:
        raise UserError(f"dp.epsilon cannot train clients by {type(training).__name__}")
    settings = {f.name: getattr(training, f.name) for f in fields(training)}
    found: Training = record(**settings, **asdict(dp), rounds=rounds)
    found.check(run_spec)
    return found


def train_privately(inputs: TaskInput) -> TaskOutput:
    """Trains a classifier or a generator by DP-SGD, one client by itself."""
    config = inputs.client.training
    assert isinstance(config, PrivateClassifier | PrivateGenerator)
    assert config.noise is not None, "the record lacks the noise of the client's samples"
    recipe = config.recipe(inputs)
    recipe = replace(recipe, trained=[p for p in recipe.parameters if p.requires_grad])
    parameters, kept = recipe.parameters, [buffer.clone() for buffer in recipe.model.buffers()]
    optimizer = optimizer_of([recipe])
    expected = min(config.batch_size, len(inputs.shard)) if recipe.reduction == "mean" else 1
    draw = _Draws(inputs, "local/dp-noise")
    dropout = in_round("local/dropout", inputs.round)
    with seeded(inputs.run_spec.seed, dropout, inputs.client.id):
        for batch in poisson_batches(inputs, config):
            sums = clipped_sums(recipe, batch, config.clip)
            for parameter, total in zip(parameters, sums, strict=True):
                noise = draw.normal(parameter.shape).to(parameter.device)
                noisy = (total + config.noise * config.clip * noise) / expected
                # In the parameter's own layout, which the fused optimisers take for granted.
                parameter.grad = torch.empty_like(parameter).copy_(noisy)
            optimizer.step((0,))
    if not all(map(torch.equal, kept, recipe.model.buffers())):
        raise ValueError("a buffer of its model has changed, which no noise hides: dp.epsilon")
    figures = {
        "epochs": config.epochs,
        "epsilon": config.spent or 0.0,
        "delta": config.delta,
        "noise_multiplier": config.noise,
    }
    return TaskOutput(tensors=recipe.upload(), stats=figures)


def poisson_batches(
    inputs: TaskInput, config: PrivateClassifier | PrivateGenerator
) -> Iterator[Batch]:
    """Batches in which each sample is with probability batch / n by itself; some may be empty.

    Columns as of :func:`fl.training.recipe.epochs_of`.
    """
    shard, size = inputs.shard, len(inputs.shard)
    if isinstance(config, GeneratorConfig):  # a decoder is to make samples as they are
        shard = replace(shard, augment=None)
    sampling = Sampling.of(size, config.batch_size, config.epochs)
    draw, latents = _Draws(inputs, "local/dp-batches"), inputs.stream("local/latent")
    readings = inputs.stream("local/readings")
    for _ in range(sampling.steps):
        chosen = draw.uniform(size) < sampling.rate
        images = shard.batch(chosen.nonzero()[:, 0], readings)
        batch = {"images": images, "labels": shard.wanted[chosen]}
        if isinstance(config, GeneratorConfig):
            batch["noise"] = torch.randn(int(chosen.sum()), config.latent, generator=latents)
        yield {name: column.to(inputs.device) for name, column in batch.items()}


def clipped_sums(recipe: Recipe, batch: Batch, clip: float) -> list[Tensor]:
    """For each parameter that is trained the sum over the batch's samples of their gradients, each
    sample's cut to norm ``clip`` over all of them; zeros for an empty batch."""
    wrapped, trained = LossesOf(recipe), {id(p) for p in recipe.parameters}
    weights = {n: p.detach() for n, p in wrapped.named_parameters() if id(p) in trained}

    def loss(weights: dict[str, Tensor], sample: Batch) -> Tensor:
        alone = {name: column[None] for name, column in sample.items()}
        found: Tensor = functional_call(wrapped, weights, (alone,))
        return found.squeeze(0)

    gradients = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    sums = {name: torch.zeros_like(p) for name, p in weights.items()}
    for part in parts_of(batch, recipe.micro_batch or MOST_AT_ONCE):
        of_samples = gradients(weights, part)
        rows = [gradient.reshape(len(gradient), -1) for gradient in of_samples.values()]
        norms = torch.stack([own.norm(dim=1) for own in rows]).norm(dim=0)
        factors = (clip / norms.clamp_min(1e-12)).clamp(max=1.0)
        for name, own in of_samples.items():
            sums[name] += torch.tensordot(factors, own, dims=1)
    return list(sums.values())


class _Draws:
    """Random numbers of a client's own stream, which whoever knows the seed can draw again.

    Without a stream they are made of the operating system's random bytes: torch's own generator
    begins with 32 of its seed's bits, which can all be tried.
    """

    def __init__(self, inputs: TaskInput, purpose: str) -> None:
        config = inputs.client.training
        assert isinstance(config, PrivateClassifier | PrivateGenerator)
        self._stream = inputs.stream(purpose) if config.noise_from_seed else None

    def uniform(self, size: int) -> Tensor:
        """float64 (size,) in [0, 1)."""
        if self._stream is not None:
            return torch.rand(size, generator=self._stream, dtype=torch.float64)
        bits = np.frombuffer(os.urandom(8 * size), np.uint64) >> np.uint64(12)
        return torch.from_numpy((bits + 0.5) / 2**52)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """float32 of that shape, standard normal."""
        if self._stream is not None:
            return torch.randn(shape, generator=self._stream)
        return torch.special.ndtri(self.uniform(math.prod(shape))).float().reshape(shape)
