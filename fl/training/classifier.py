"""Local training of a classifier (Eq. 2): its settings, its starting weights, and the task."""

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from fl.bounds import Count, NotNegative, OneOf, Positive, Settings, Width, Within
from fl.errors import UserError
from fl.exchange import Tensors, check_forms, load_prefixed, prefixed
from fl.federation import Batch, RunSpec, TaskInput, Training, Update
from fl.models import registry as models
from fl.models.common import AnyBatchNorm, ModelInfo, load_sent, state_sent
from fl.models.registry import MODELS, smallest_batch, smallest_batch_of
from fl.receiving import Trial, askable, check_reach, extent, extents, trial_inputs
from fl.seeding import seed_for, seed_streams, seeded, streams_restored, torch_generator
from fl.training.features import check_head
from fl.training.losses import Losses, losses_of
from fl.training.optimizers import SGD, Adam, Paced, Proximal, Schedule
from fl.training.recipe import HeldOut, Recipe, epochs_of, parts_of
from fl.training.task import RecipeTraining

log = logging.getLogger(__name__)


class Architecture(Protocol):
    """A record that names a classifier and its width."""

    @property
    def model(self) -> str:
        """The classifier's name in the registry."""

    @property
    def width(self) -> float:
        """Factor on channels and hidden units; 1 is the paper's size."""


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(RecipeTraining, Settings):
    """Local training of a classifier client (Eq. 2). It uploads ``classifier.*``."""

    needs_head: ClassVar[str | None] = None
    """The method by which such clients train, where it looks at what enters the model's head."""

    model: Annotated[str, OneOf(models.CLASSIFIERS)] = "vgg9"
    """Classifier architecture, such as vgg9 or cnn; all are in docs/methods/models.md."""
    width: Width = 0.25
    """Factor on channels and hidden units; 1 is the paper's size."""
    epochs: Count = 30
    """Local epochs."""
    patience: Count | None = None
    """A client stops after this many epochs without a lower training loss. Default: never."""
    validation: Annotated[float, Within(0, 1, "[)")] = 0.0
    """Share of a client's samples that it never trains on: patience then looks at their loss, and
    the weights of the epoch with the lowest are uploaded."""
    lr: Positive = 0.02
    """Learning rate."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Local optimiser; sgd uses the momentum below."""
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    """Momentum of sgd."""
    weight_decay: NotNegative = 0.0
    """Weight decay of the optimiser; adamw's is decoupled."""
    schedule: Schedule = "constant"
    """The rate over a client's steps in a round: cosine falls to 0; step to a tenth after half of
    them, and to a hundredth after three quarters."""
    warmup: Annotated[float, Within(0, 1, "[)")] = 0.0
    """Share of the steps, at the start, in which the learning rate rises linearly."""
    round_decay: Annotated[float, Within(0, 1, "(]")] = 1.0
    """Factor on the rate in each round after the first (FedDyn's authors: 0.998)."""
    max_norm: Positive | None = None
    """Largest norm of a step's gradient, to which longer ones are scaled. Default: none."""
    batch_size: Count = 16
    """Samples per step."""
    micro_batch: Count | None = None
    """Samples that are passed at once, where a step's do not fit into memory; their gradients add
    up; not with BatchNorm. Default: a step's."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of a client's passes; bf16 is faster on processors that have it, and rounds."""
    proximal: NotNegative = 0.0
    """FedProx's mu: mu/2 times the squared distance from the weights at the start of the round is
    added to the loss. 0: nothing is added."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """From the weights ``classifier.*`` that the server sent; if it sent none, from those drawn
        from the seed."""
        return classifier_recipe(inputs, self, received_classifier(inputs, self))

    def refuse_pace(self, who: str) -> None:
        """Raises `UserError` for settings by which the steps of ``who`` would differ in more than
        their gradients, for ``check_further`` of those that cannot take it."""
        own = (self.schedule, self.warmup, self.round_decay, self.max_norm, self.validation)
        if own != ("constant", 0.0, 1.0, None, 0.0):
            raise UserError(
                f"{who} needs a constant learning rate: leave out schedule, warmup, round_decay, "
                "max_norm and validation"
            )

    def refuse_uncounted(self, who: str) -> None:
        """The same for ``who`` counts a client's steps of SGD."""
        self.refuse_pace(who)
        if self.optimizer != "sgd" or self.patience is not None:
            raise UserError(f"{who} counts steps of SGD: optimizer must be sgd; leave patience out")

    def make_optimizer(self) -> SGD | Adam:
        """The optimiser that these settings name, at the rate of the first round."""
        if self.optimizer == "sgd":
            return SGD(self.lr, self.momentum, self.weight_decay)
        decoupled = self.optimizer == "adamw"
        return Adam(self.lr, weight_decay=self.weight_decay, decoupled=decoupled)

    def paced_optimizer(self, num_samples: int, round: int, least: int) -> SGD | Adam | Paced:
        """That of a client with so many samples in this round, from 1. ``least``: as of
        :meth:`steps`."""
        plain = self.make_optimizer()
        plain = replace(plain, lr=self.lr * self.round_decay ** (round - 1))
        if (self.schedule, self.warmup, self.max_norm) == ("constant", 0.0, None):
            return plain
        return Paced(
            plain, self.steps(num_samples, least), self.schedule, self.warmup, self.max_norm
        )

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` if the classifier cannot take such samples, or lacks a head."""
        run_spec = self.answered(run_spec)
        inputs, classes = run_spec.inputs, run_spec.outputs
        models.check_classifier(self.model, inputs, classes, width=self.width)
        tokens = run_spec.targets is not None and run_spec.targets.kind == "tokens"
        if tokens and not MODELS[self.model].source:
            raise UserError(f"{self.model} gives one output per sample; tokens need your own model")
        if MODELS[self.model].source:
            self._check_form(run_spec)
        layers = starting_classifier(self, run_spec).train().modules() if self.micro_batch else ()
        if any(isinstance(layer, AnyBatchNorm) and layer.training for layer in layers):
            raise UserError(
                f"micro_batch cannot be used with {self.model}: its BatchNorm needs the whole batch"
            )
        least = smallest_batch_of(self.model, inputs, classes, self.width)
        if self.batch_size < least:
            raise UserError(
                f"batch_size must be at least {least} for {self.model} on these samples, got "
                f"{self.batch_size}: its BatchNorm needs two values per channel"
            )
        if self.needs_head:
            check_head(self.needs_head, self.model, self.width, run_spec)

    @torch.no_grad()
    def _check_form(self, run_spec: RunSpec) -> None:
        """Refuses answers for each place where targets are of whole samples, and the reverse."""
        own, count = run_spec.targets, run_spec.outputs
        kind = own.kind if own else "classes"
        expected = (2, *own.shape, count) if own and kind == "tokens" else (2, count)
        with seeded(0, "form"):
            found = starting_classifier(self, run_spec).eval()(run_spec.inputs.example(2))
        if found.shape != expected:
            raise UserError(
                f"model {self.model} gives {tuple(found.shape)} for 2 samples, expected "
                f"{expected}, as the targets are {kind}"
            )

    def answered(self, run_spec: RunSpec) -> RunSpec:
        """The run with the classes that the model has; some trainings add one of their own."""
        return run_spec

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """Bytes of the weights."""
        inputs, classes = run_spec.inputs, self.answered(run_spec).outputs
        return models.classifier_bytes(self.model, inputs, classes, width=self.width)

    def check_upload(self, update: Update, run_spec: RunSpec) -> None:
        """Raises `ValueError` unless it holds this classifier's weights, which training can have
        made and which answer finitely; what stays with the client answers nobody."""
        trial, start, asked = _trial(MODELS[self.model], self.width, self.answered(run_spec))
        check_forms(trial.expected, update.tensors, "classifier", update.sender)
        reach = self.reach(update.client.num_samples)
        check_reach(update, "classifier", start, reach, run_spec.targets)
        if not update.private:
            trial.check(update, "classifier", asked)

    def check_sent(self, names: Set[str], round: int) -> None:
        """See :class:`fl.federation.Training`; a warning tells of clients that begin anew."""
        by_weights = type(self).recipe is ClassifierConfig.recipe
        if not by_weights or any(name.startswith("classifier.") for name in names):
            return
        if names:
            raise UserError(
                f"clients are sent {min(names)}, but their training uses only classifier.*: send "
                "weights as onefold.sent(model) names them"
            )
        if round == 2:  # said once
            log.warning("clients are sent no weights in round 2, so each starts anew")

    def reach(self, num_samples: int) -> float:
        """How far the training of so many samples can move a weight."""
        return self.make_optimizer().reach(self.steps(num_samples))


def classifier_recipe(
    inputs: TaskInput,
    config: ClassifierConfig,
    model: nn.Module,
    *,
    losses: Losses | None = None,
    columns: Batch | None = None,
    asked: Callable[[Tensor], Batch] | None = None,
) -> Recipe:
    """The training of ``model`` by its record, which uploads ``classifier.*``.

    Args:
        inputs: the client's.
        config: its record.
        model: with the weights to start from, on the client's device; it is trained in place.
        losses: the loss of each sample, (B,); without it that of :func:`losses_of`.
        columns: further columns of the batches, a row for each of the client's samples.
        asked: further columns that follow from samples (N, ...), such as a frozen model's answers:
            asked once of all samples or, where these vary from epoch to epoch, in each step.
    """
    columns = columns or {}
    if asked and not inputs.shard.changes:
        columns, asked = {**columns, **asked(inputs.shard.images.to(inputs.device))}, None
    losses = losses or losses_of(inputs.run_spec, model)
    if config.precision == "bf16":
        losses = partial(_in_bf16, losses)
    held_out = None
    if config.validation:
        inputs, columns, held_out = _held_out(inputs, config, model, losses, columns, asked)
    least = smallest_batch(model)
    optimizer = config.paced_optimizer(len(inputs.shard), inputs.round, least)
    kept = {n: t.clone() for n, t in model.named_buffers() if n in vars(model).get("stays", ())}

    def upload() -> Tensors:
        _check_kept(model, kept)
        if MODELS[config.model].source:
            _check_nothing_hidden(model, config, inputs)
        return prefixed("classifier", model)

    return Recipe(
        model=model.train(),
        losses=losses,
        optimizer=Proximal(optimizer, config.proximal) if config.proximal else optimizer,
        epochs=epochs_of(inputs, config, model, columns=columns, asked=asked),
        patience=config.patience,
        held_out=held_out,
        micro_batch=config.micro_batch,
        client=inputs.client.id,
        upload=upload,
    )


def _check_kept(model: nn.Module, kept: Mapping[str, Tensor]) -> None:
    """Refuses a change of a buffer that is not sent."""
    for name, tensor in model.named_buffers():
        unchanged = name not in kept or name.endswith("num_batches_tracked")
        if not unchanged and not torch.equal(tensor, kept[name]):
            raise ValueError(
                f"the model's buffer {name} changes in training, but is not sent, since it "
                "holds whole numbers or infinities: make it one of finite floats"
            )


@torch.no_grad()
def _check_nothing_hidden(model: nn.Module, config: Architecture, inputs: TaskInput) -> None:
    """Refuses a trained model that answers otherwise than one that has what is sent of it."""
    fresh = starting_classifier(config, inputs.run_spec)
    load_sent(fresh, state_sent(model))
    samples = inputs.shard.take(torch.arange(4) % len(inputs.shard)).images

    def answers(asked: nn.Module, device: torch.device, seed: int = 0) -> Tensor:
        seed_streams(seed_for(seed, "answers"))
        found: Tensor = asked.eval()(samples.to(device))
        return found.cpu()

    with streams_restored():
        found, expected = answers(model, inputs.device), answers(fresh, samples.device)
        differs = extent(found - expected) > 0.03 * extent(expected) + 1e-5  # devices round apart
        # One that draws random numbers has others on another device.
        differs = differs and torch.equal(answers(fresh, samples.device, seed=1), expected)
    if differs:
        raise ValueError(
            "training changes more of the model than is sent: with the sent weights alone its "
            "outputs differ; keep what it learns in parameters or buffers of floats, not in other "
            "attributes or with persistent=False"
        )


def _held_out(
    inputs: TaskInput,
    config: ClassifierConfig,
    model: nn.Module,
    losses: Losses,
    columns: Batch,
    asked: Callable[[Tensor], Batch] | None,
) -> tuple[TaskInput, Batch, HeldOut]:
    """The client's input and columns without the samples that it is measured on, and these."""
    rows, left = held_out_rows(inputs, config)
    held = inputs.shard.take(rows)
    own = {name: column[rows] for name, column in columns.items()}
    own |= asked(held.images.to(inputs.device)) if asked else {}
    whole = {"images": held.images, "labels": held.wanted, **own}

    def loss(model: nn.Module) -> float:
        found = []
        for part in parts_of(whole, config.batch_size):
            found.append(losses(model, {n: c.to(inputs.device) for n, c in part.items()}))
        return float(torch.cat(found).double().mean())

    kept = {name: column[left] for name, column in columns.items()}
    return replace(inputs, shard=inputs.shard.take(left)), kept, HeldOut(model, loss)


def held_out_rows(inputs: TaskInput, config: ClassifierConfig) -> tuple[Tensor, Tensor]:
    """The rows of the client's samples that it trains on in no round, and the others."""
    count, seed = len(inputs.shard), inputs.run_spec.seed
    return rows_held_out(count, config.validation, seed, inputs.client.id)


def rows_held_out(count: int, share: float, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """The same of a client with so many samples."""
    size = min(count - 1, max(1, round(share * count)))
    if size < 1:
        raise ValueError(f"has {count} sample, of which validation cannot hold out one")
    order = torch.randperm(count, generator=torch_generator(seed, "local/validation", client))
    return order[:size].sort().values, order[size:].sort().values


def _in_bf16(losses: Losses, model: nn.Module, batch: Batch) -> Tensor:
    """The losses of passes with bf16 products; each is float32."""
    with torch.autocast(batch["images"].device.type, torch.bfloat16):
        return losses(model, batch).float()


def plain(training: Training, **changes: object) -> ClassifierConfig:
    """The settings that every classifier's training has, without those that a method adds.

    By such a record a client trains as FedAvg's do, and finds their uploads in the store.
    """
    own = {field.name: getattr(training, field.name) for field in fields(ClassifierConfig)}
    return ClassifierConfig(**{**own, **changes})


def starting_classifier(config: Architecture, run_spec: RunSpec) -> nn.Module:
    """The weights from which every client of one architecture starts.

    They are drawn from the run's seed, so they need not be sent; without a shared start the average
    of Eq. 4 would be useless.
    """
    return start(MODELS[config.model], config.width, run_spec)


def start(info: ModelInfo, width: float, run_spec: RunSpec) -> nn.Module:
    """The starting weights of the registry's model of that width."""
    drawn = _start(info, width, run_spec)
    if not info.source:
        return models.copied(drawn)
    # Built anew: a hook or a list of the user's may hold on to layers that a copy would share.
    own = _built(info, width, run_spec)
    own.load_state_dict(drawn.state_dict())
    return own


def received_classifier(inputs: TaskInput, config: Architecture) -> nn.Module:
    """The weights ``classifier.*`` that the server sent, or the start, on the client's device."""
    model = starting_classifier(config, inputs.run_spec)
    received = {**inputs.broadcast, **inputs.payload}
    if any(name.startswith("classifier.") for name in received):
        load_prefixed(model, received, "classifier", sender="the server")
    return model.to(inputs.device)


@lru_cache(maxsize=8)
def _start(info: ModelInfo, width: float, run_spec: RunSpec) -> nn.Module:
    """The start, drawn once per process, since a light client trains faster than it is drawn.

    Copies have the same layout. By the registry's record, not by the name: a notebook's cell that
    is run again registers another model of that name.
    """
    return models.in_fast_layout(_built(info, width, run_spec))


def _built(info: ModelInfo, width: float, run_spec: RunSpec) -> nn.Module:
    name, classes = info.name, run_spec.outputs
    with seeded(run_spec.seed, f"start/{name}"):
        return models.build_classifier(name, run_spec.inputs, classes, width=width)


@lru_cache(maxsize=8)
def _trial(
    info: ModelInfo, width: float, run_spec: RunSpec
) -> tuple[Trial, Mapping[str, float], Tensor]:
    """By what an upload is tried: the model, the largest magnitude of its starting weights, and
    what it is asked."""
    inputs, first = run_spec.inputs, extents(_start(info, width, run_spec))
    if info.source:  # its frozen weights and its constants are not sent
        model = start(info, width, run_spec)
        return Trial(model), first, askable(model, inputs)
    with seeded(0, "trial"):
        model = models.build_shell(info.name, inputs, run_spec.outputs, width=width)
    return Trial(model), first, trial_inputs(inputs)
