"""Local training of a classifier (Eq. 2): its settings, its starting weights, and the task."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative, OneOf, Positive, Settings, Width, Within
from fl.errors import UserError, reason_of
from fl.exchange import Tensors, check_forms, load_prefixed, prefixed
from fl.federation import Batch, RunSpec, Task, TaskInput, Training, Update
from fl.models import (
    CLASSIFIERS,
    build_classifier,
    build_shell,
    check_classifier,
    classifier_bytes,
    copied,
    in_fast_layout,
)
from fl.models.registry import MODELS
from fl.models.shapes import AnyBatchNorm, ModelInfo, forwards_replaced
from fl.models.state import load_sent, state_sent
from fl.plausible import Trial, check_reach, extent, extents, trial_inputs
from fl.seeding import seeded
from fl.training.batches import smallest_batch, smallest_batch_of
from fl.training.epochs import EpochTraining, epochs_of
from fl.training.optimizers import SGD, Adam, Paced, Proximal, Schedule
from fl.training.recipe import HeldOut, Recipe, parts_of
from fl.training.task import task_of

Losses = Callable[[nn.Module, Batch], Tensor]


class Architecture(Protocol):
    """A record that names a classifier and its width."""

    @property
    def model(self) -> str:
        """The classifier's name in the registry."""
        ...

    @property
    def width(self) -> float:
        """Factor on channels and hidden units; 1 is the paper's size."""
        ...


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(EpochTraining, Settings):
    """Local training of a classifier client (Eq. 2). It uploads ``classifier.*``."""

    model: Annotated[str, OneOf(CLASSIFIERS)] = "vgg9"
    """Classifier architecture, such as vgg9 or cnn; all are in docs/methods/models.md."""
    width: Width = 0.25
    """Factor on channels and hidden units; 1 is the paper's size."""
    epochs: Count = 30
    """Local epochs."""
    patience: Count | None = None
    """Epochs without a lower training loss after which a client stops. Default: it never does."""
    validation: Annotated[float, Within(0, 1, "[)")] = 0.0
    """Share of a client's samples that it does not train on: patience then looks at their loss, and
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
    """Share of the steps in which the rate rises linearly."""
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

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_classifier

    def refuse_pace(self, who: str) -> None:
        """Raises `UserError` for settings by which the steps of ``who`` would differ in more than
        their gradients, for ``check_further`` of those that cannot take it."""
        own = (self.schedule, self.warmup, self.round_decay, self.max_norm, self.validation)
        if own != ("constant", 0.0, 1.0, None, 0.0):
            raise UserError(
                f"{who} takes steps of one rate: schedule, warmup, round_decay, max_norm and "
                "validation do not go with it"
            )

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
        """Raises `UserError` if the classifier cannot take such samples."""
        run_spec = self.answered(run_spec)
        inputs, classes = run_spec.inputs, run_spec.outputs
        check_classifier(self.model, inputs, classes, width=self.width)
        tokens = run_spec.targets is not None and run_spec.targets.kind == "tokens"
        if tokens and not MODELS[self.model].source:
            raise UserError(f"{self.model} answers whole samples; tokens need a model of your own")
        if MODELS[self.model].source and (tokens or inputs.kind == "integers"):
            self._check_form(run_spec)
        layers = starting_classifier(self, run_spec).train().modules() if self.micro_batch else ()
        if any(isinstance(layer, AnyBatchNorm) and layer.training for layer in layers):
            raise UserError(
                f"micro_batch does not go with {self.model}: its BatchNorm looks at all samples "
                "that are passed at once"
            )
        least = smallest_batch_of(self.model, inputs, classes, self.width)
        if self.batch_size < least:
            raise UserError(
                f"batch_size is {self.batch_size}; on such samples {self.model} needs at least "
                f"{least}, since its BatchNorm needs two values per channel"
            )

    @torch.no_grad()
    def _check_form(self, run_spec: RunSpec) -> None:
        """Refuses answers for each place where targets are of whole samples, and the reverse."""
        own, count = run_spec.targets, run_spec.outputs
        expected = (2, *own.shape, count) if own and own.kind == "tokens" else (2, count)
        with seeded(0, "form"):
            found = starting_classifier(self, run_spec).eval()(run_spec.inputs.zeros(2))
        if found.shape != expected:
            raise UserError(
                f"model {self.model} gives {tuple(found.shape)} for 2 samples, expected {expected}"
            )

    def answered(self, run_spec: RunSpec) -> RunSpec:
        """The run with the classes that the model has; some trainings add one of their own."""
        return run_spec

    def upload_bytes(self, run_spec: RunSpec) -> int:
        """Bytes of the weights."""
        inputs, classes = run_spec.inputs, self.answered(run_spec).outputs
        return classifier_bytes(self.model, inputs, classes, width=self.width)

    def check_upload(self, update: Update, run_spec: RunSpec) -> None:
        """Raises `ValueError` unless it holds this classifier's weights, which training can have
        made and which answer finitely; what stays with the client answers nobody."""
        trial, start = _trial(MODELS[self.model], self.width, self.answered(run_spec))
        sender = f"client {update.client.id}"
        check_forms(trial.expected, update.tensors, "classifier", sender)
        check_reach(update, "classifier", start, self.reach(update.client.num_samples))
        if not update.private:
            trial.check(update, "classifier", trial_inputs(run_spec.inputs))

    def reach(self, num_samples: int) -> float:
        """How far the training of so many samples can move a weight."""
        return self.make_optimizer().reach(self.steps(num_samples))


@task_of
def train_classifier(inputs: TaskInput) -> Recipe:
    """Trains a classifier; Algorithm 1, lines 3 to 7.

    It starts from the weights ``classifier.*`` that the server sent; if it sent none, from those
    drawn from the seed.
    """
    config = inputs.client.training
    assert isinstance(config, ClassifierConfig)
    return classifier_recipe(inputs, config, received_classifier(inputs, config))


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
        for name, tensor in model.named_buffers():
            unchanged = name not in kept or name.endswith("num_batches_tracked")
            if not unchanged and not torch.equal(tensor, kept[name]):
                raise ValueError(
                    f"the model's buffer {name} changes in training, but is not sent, since it "
                    "holds whole numbers or infinities: make it one of finite floats"
                )
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


@torch.no_grad()
def _check_nothing_hidden(model: nn.Module, config: Architecture, inputs: TaskInput) -> None:
    """Refuses a trained model that answers otherwise than one that has what is sent of it."""
    fresh = starting_classifier(config, inputs.run_spec)
    load_sent(fresh, state_sent(model))
    samples = inputs.shard.take(torch.arange(4) % len(inputs.shard)).images

    def answers(asked: nn.Module, device: torch.device, seed: int = 0) -> Tensor:
        with seeded(seed, "answers"):
            found: Tensor = asked.eval()(samples.to(device))
        return found.cpu()

    found, expected = answers(model, inputs.device), answers(fresh, samples.device)
    if not torch.equal(answers(fresh, samples.device, seed=1), expected):
        return  # it draws random numbers, which are others on another device
    if extent(found - expected) > 0.03 * extent(expected) + 1e-5:  # devices round otherwise
        raise ValueError(
            "what training changes of the model is not all sent: it answers otherwise than one "
            "with the weights that are; keep what it learns in parameters or buffers of floats, "
            "not in other attributes or with persistent=False"
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
    """The rows of the client's samples that it does not train on in this round, and the others."""
    count = len(inputs.shard)
    size = min(count - 1, max(1, round(config.validation * count)))
    if size < 1:
        raise ValueError(f"has {count} sample, of which validation cannot hold out one")
    order = torch.randperm(count, generator=inputs.stream("local/validation"))
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
        return copied(drawn)
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
    return in_fast_layout(_built(info, width, run_spec))


def _built(info: ModelInfo, width: float, run_spec: RunSpec) -> nn.Module:
    name, classes = info.name, run_spec.outputs
    with seeded(run_spec.seed, f"start/{name}"):
        return build_classifier(name, run_spec.inputs, classes, width=width)


@lru_cache(maxsize=8)
def _trial(info: ModelInfo, width: float, run_spec: RunSpec) -> tuple[Trial, Mapping[str, float]]:
    """By what an upload is tried: the model, and the largest magnitude of its starting weights."""
    inputs, classes = run_spec.inputs, run_spec.outputs
    if info.source:  # its frozen weights and its constants are not sent
        return Trial(start(info, width, run_spec)), extents(_start(info, width, run_spec))
    with seeded(0, "trial"):
        model = build_shell(info.name, inputs, classes, width=width)
    return Trial(model), extents(_start(info, width, run_spec))


def losses_of(run_spec: RunSpec, model: nn.Module) -> Losses:
    """The loss of each sample, (B,): the model's own if it has one, else that of the targets, which
    is cross-entropy of classes. One number for a batch counts as each sample's."""
    if not has_own_loss(model):
        if run_spec.targets is None:
            return cross_entropies
        wanted = run_spec.targets.losses
        return lambda model, batch: wanted(model(batch["images"]), batch["labels"])

    def own(model: Any, batch: Batch) -> Tensor:
        samples, targets = batch["images"], batch["labels"]
        if hasattr(model, "training_loss"):
            several = run_spec.inputs.parts
            given = run_spec.inputs.one_by_one(samples) if several else samples
            found = model.training_loss(given, targets)
        else:
            if isinstance(model.own_loss, nn.Module):
                model.own_loss.to(targets.device)  # weights of classes, say
            found = model.own_loss(model(samples), targets)
        if not isinstance(found, Tensor) or found.shape not in ((), targets.shape[:1]):
            form = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"the loss gives {form} for {len(targets)} samples: expected a tensor with one "
                "number, or one for each"
            )
        return found.expand(len(targets))

    return own


def has_own_loss(model: nn.Module) -> bool:
    """Whether the model says itself what clients minimise: by a method ``training_loss``, or by the
    function that it was registered with."""
    return hasattr(model, "training_loss") or "own_loss" in vars(model)


def check_own_loss(config: Architecture, run_spec: RunSpec, *, apart: bool = False) -> bool:
    """Whether there is one, which is then tried on four samples.

    Args:
        config: the client's record.
        run_spec: of the run.
        apart: whether a batch's samples are passed apart from each other.

    Raises:
        UserError: it fails, or is not what it is meant to be.
    """
    model = starting_classifier(config, run_spec)
    if not has_own_loss(model):
        return False
    if hasattr(model, "training_loss") and "own_loss" in vars(model):
        raise UserError(
            f"{config.model} has a method training_loss, and a loss was given: name one"
        )
    images = run_spec.inputs.draw(4, torch.Generator().manual_seed(0))
    batch = {"images": images, "labels": example_targets(run_spec, 4)}
    untouched = {name: tensor.clone() for name, tensor in batch.items()}
    losses = losses_of(run_spec, model)
    try:
        found = _asked_twice(model, losses, batch)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"the loss of {config.model} fails: {type(error).__name__}: {reason_of(error)}"
        ) from None
    if not all(torch.equal(tensor, untouched[name]) for name, tensor in batch.items()):
        raise UserError(f"the loss of {config.model} changes samples or labels in place")
    if not found[0].requires_grad:
        raise UserError(f"the loss of {config.model} depends on no weight of the model")
    if not torch.equal(*found):
        raise UserError(
            f"the loss of {config.model} gives another number when it is called again: it keeps "
            "something between calls, which clients in one process would share; allowed is what "
            "depends on its arguments and on the global random streams"
        )
    if apart and not _is_a_mean(model, losses, run_spec):
        raise UserError(
            f"the loss of {config.model} is not the mean of its samples' losses, as one with "
            "weights of classes: micro_batch and dp.epsilon, which pass samples apart, do not go "
            "with it"
        )
    if (own := run_spec.targets) and own.kind == "values" and _mixes_up(model, losses, batch):
        raise UserError(
            f"the loss of {config.model} is the same whichever target is whose: targets are (B, "
            f"{run_spec.outputs}) as the answers are, so leave squeeze() out"
        )
    return True


def _mixes_up(model: nn.Module, losses: Losses, batch: Batch) -> bool:
    """Whether the loss does not depend on which target is which sample's."""
    turned = {**batch, "labels": batch["labels"].flip(0)}
    with torch.no_grad(), seeded(0, "loss"):
        found, other = (losses(copied(model).train(), part).mean() for part in (batch, turned))
    return bool(torch.isclose(found, other))


def _asked_twice(model: nn.Module, losses: Losses, batch: Batch) -> list[Tensor]:
    """The loss of two copies of the model, which have the loss itself in common."""
    found = []
    for twin in (copied(model), copied(model)):
        if "own_loss" in vars(model):
            vars(twin)["own_loss"] = vars(model)["own_loss"]
        with torch.enable_grad(), seeded(0, "loss"):
            found.append(losses(twin.train(), batch).mean())
    return found


def _is_a_mean(model: nn.Module, losses: Losses, run_spec: RunSpec) -> bool:
    """Whether the loss of a batch is the mean of the losses of its samples alone."""
    try:
        with seeded(0, "loss"):
            whole, alone = tried_losses(model, losses, run_spec)
            return bool(torch.isclose(torch.stack([*alone]).mean(), whole, rtol=1e-4))
    except Exception:  # it needs several
        return False


def tried_losses(
    model: nn.Module, losses: Losses, run_spec: RunSpec
) -> tuple[Tensor, Iterator[Tensor]]:
    """The loss of a batch that has each class, label or token, and of each of its samples alone.

    Random answers take the place of the model's, which may take long.
    """
    stream = torch.Generator().manual_seed(0)
    places = math.prod(run_spec.targets.shape) if run_spec.targets else 1
    count = max(8, -(-run_spec.outputs // places))
    example, image = example_targets(run_spec, count), run_spec.inputs.draw(1, stream)
    order = torch.randperm(example.numel(), generator=stream)  # no two rows are alike
    labels, twin = example.flatten()[order].view_as(example), copied(model).eval()

    def loss(rows: Tensor) -> Tensor:
        images = image.expand(len(rows), *image.shape[1:])
        with torch.no_grad(), forwards_replaced({twin: lambda images: answers[rows]}):
            return losses(twin, {"images": images, "labels": labels[rows]}).mean()

    with torch.no_grad():
        answers = torch.randn(count, *twin(image).shape[1:], generator=stream)
    return loss(torch.arange(count)), map(loss, torch.arange(count).split(1))


def example_targets(run_spec: RunSpec, count: int) -> Tensor:
    """So many targets, of each kind that there is."""
    if run_spec.targets is not None:
        return run_spec.targets.example(count)
    return torch.arange(count) % run_spec.num_classes


def cross_entropies(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each sample of the batch, (B,)."""
    return F.cross_entropy(model(batch["images"]), batch["labels"], reduction="none")
