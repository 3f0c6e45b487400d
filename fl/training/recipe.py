"""How one client trains, defined once: it runs for one client, or for many as one computation."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import length_hint
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.events import report
from fl.exchange import Tensors
from fl.federation import Batch, TaskInput, TaskOutput, Training
from fl.models.common import Built, load_whole
from fl.models.registry import smallest_batch
from fl.seeding import in_round, seeded, streams_restored
from fl.training import optimizers
from fl.training.reduced import Reduced

# The one training loop of all clients and of the server.


class Step(NamedTuple):
    """The loss that one training step minimises."""

    loss: Tensor
    """A scalar; if it depends on no parameter, there is no backward pass."""
    clients: Sequence[int] = (0,)
    """The clients to update, by position."""
    more: Iterable[Tensor] = ()
    """Further losses of the step, each computed when the one before has its gradients."""
    one: Tensor | None = None
    """The number 1 on a GPU, where autograd would make another. Given one, torch imports sympy,
    which takes longer than that saves on a CPU."""


def minimise(
    steps: Iterable[Step],
    parameters: Sequence[Sequence[Tensor]],
    optimizer: optimizers.CohortOptimizer,
    adjust: Callable[[], None] = lambda: None,
) -> None:
    """Moves the parameters along the gradient of each step's loss.

    Args:
        steps: computes each loss when it is asked for, with the weights after the step before.
        parameters: those of each client.
        optimizer: over the same parameters.
        adjust: called before each update, to clip the gradients or to sum them over ranks.
    """
    for loss, clients, more, one in steps:
        for k in clients:
            for parameter in parameters[k]:
                parameter.grad = None
        if loss.requires_grad:
            loss.backward(None if loss.dim() else one)  # of several elements torch refuses it
        for further in more:
            further.backward()
        adjust()
        optimizer.step(clients)


# The batches of an epoch. No batch is smaller than the model can be trained on: a last one of one
# sample is joined to the batch before.

Epoch = Iterator[Batch]
"""The batches of one pass over a client's data."""


class EpochTraining(Training):
    """The methods of trainings with these settings."""

    epochs: int
    lr: float
    batch_size: int

    def work(self, num_samples: int) -> int:
        """Samples passed through the model."""
        return self.epochs * num_samples

    def steps(self, num_samples: int, least: int = 1) -> int:
        """Steps of the optimiser, of a client with so many samples, whose batches have ``least``
        and more: a smaller last one is part of that before it."""
        whole, rest = divmod(num_samples, self.batch_size)
        return self.epochs * max(1, whole + (rest >= least))

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """The training with one epoch, and the samples of ``steps`` batches."""
        return replace(self, epochs=1), steps * self.batch_size


def epochs_of(
    inputs: TaskInput,
    config: EpochTraining,
    model: nn.Module | None = None,
    *,
    latent: int | None = None,
    columns: Batch | None = None,
    asked: Callable[[Tensor], Batch] | None = None,
    order: str = "local/order",
) -> "Epochs":
    """Each epoch's batches: the shard's samples in a new order, cut into batches.

    ``order`` names the stream of the orders, for a client that trains several times a round. With
    the ``model`` that is trained, no batch is smaller than it needs: see :func:`cut`.

    Batches hold ``images`` (B, C, H, W), augmented if the data says so, and ``labels`` (B,); with
    ``latent`` also ``noise`` (B, latent), from N(0, 1), and of each of the ``columns``, which have
    a row for each of the shard's samples, those of the batch; and what is ``asked`` of its samples.
    """
    device, shard = inputs.device, inputs.shard
    rows = {"labels": shard.wanted, **(columns or {})}
    check_labels(rows["labels"], model, shard.num_classes)
    if not shard.varies:
        rows["images"] = shard.images
    rows = {name: column.to(device) for name, column in rows.items()}
    orders, noise, readings = map(inputs.stream, (order, "local/latent", "local/readings"))
    least = smallest_batch(model) if model is not None else 1

    def plan(device: torch.device) -> Iterator[tuple[Tensor, Tensor | None]]:
        shuffled = torch.randperm(len(rows["labels"]), generator=orders)
        if device.type == "cuda":  # so that the host goes on: to other clients' steps
            shuffled = shuffled.pin_memory().to(device, non_blocking=True)
        for positions in cut(shuffled, config.batch_size, least):
            drawn = None
            if latent is not None:
                drawn = torch.randn(len(positions), latent, generator=noise)
            yield positions, drawn

    def batches() -> Epoch:
        for positions, drawn in plan(device):
            # The same as column[positions], in a quarter of the time.
            batch = {name: column.index_select(0, positions) for name, column in rows.items()}
            if shard.varies:
                batch["images"] = shard.batch(positions.cpu(), readings).to(device)
            if drawn is not None:
                batch["noise"] = drawn.to(device)
            yield {**batch, **asked(batch["images"])} if asked else batch

    planned = None if shard.varies else Planned(rows, config.batch_size, latent or 0, plan)
    return Epochs(config.epochs, batches, planned)


@dataclass
class Planned:
    """Batches as rows of columns, which whoever trains takes from them itself."""

    columns: Batch
    """All of the client's samples, (N, ...) each, on its device."""
    batch_size: int
    """Samples of a batch, at most."""
    latent: int
    """Length of a sample's ``noise``; 0 where there is none."""
    epoch: Callable[[torch.device], Iterator[tuple[Tensor, Tensor | None]]]
    """The next epoch's batches: their rows (B,), on that device, and their noise (B, latent) on the
    host."""


@dataclass
class Epochs:
    """An iterator over epochs that knows how many are left."""

    left: int
    begin: Callable[[], Epoch]
    planned: Planned | None = None
    """The same epochs; None where samples are read anew in each."""

    def __iter__(self) -> Iterator[Epoch]:
        return self

    def __next__(self) -> Epoch:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.begin()

    def __length_hint__(self) -> int:
        return self.left


def check_labels(labels: Tensor, model: nn.Module | None, num_classes: int) -> None:
    """Refuses labels, integers (N,), that are no class: some losses would be NaN, and some leave
    such samples out, as cross-entropy does those of -100.

    Args:
        labels: all that are trained on; others than such integers are left to the loss.
        model: what is trained, which may have a class more than there are, if it was built here.
        num_classes: of the data, where there is no model.

    Raises:
        UserError: names the label.
    """
    if labels.ndim != 1 or labels.is_floating_point() or not len(labels):
        return
    built = [vars(part).get("built_as") for part in model.modules()] if model is not None else []
    known = [b.num_classes for b in built if isinstance(b, Built)]
    classes = max(known) if known else num_classes if model is None else math.inf
    least, most = (int(label) for label in labels.aminmax())
    if least < 0 or most >= classes:
        end = "and more" if classes == math.inf else f"to {classes - 1}"
        raise UserError(f"label {least if least < 0 else most}; allowed: 0 {end}")


def cut(order: Tensor, size: int, least: int = 1) -> Sequence[Tensor]:
    """The rows (N,) in batches of ``size``; a last one below ``least`` is joined to the one before.

    Raises:
        ValueError: there are fewer rows than ``least`` in all.
    """
    if len(order) < least:
        raise ValueError(
            f"has {len(order)} sample, but the model's BatchNorm needs {least} in a batch: leave "
            "such clients out of the partition, or take a model without it"
        )
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) < least:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


# A client's training, and the loop that runs it.

Reduction = Literal["mean", "sum"]
Formula = Callable[[Tensor], Callable[..., Tensor]]
"""Takes a model's weights as one tensor, whose ``grad`` is there: gives what writes a batch's
gradient to that and returns the losses, (B,)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One client's training, before it runs.

    An author writes it for one client and a batch of B samples. It can also be run for many clients
    at once if it follows one rule: ``losses`` gives each sample's loss, (B,), and no sample changes
    another's. The rule is checked (:func:`fl.training.stacked.conflict`).
    """

    model: nn.Module
    """In training mode, on its device, with the weights to start from; it is trained in place."""
    losses: Callable[[nn.Module, Batch], Tensor]
    """Loss of each sample of a batch, (B,)."""
    reduction: Reduction = "mean"
    """How a batch's losses are combined into the one that is minimised."""
    gradient: Formula | None = None
    """The gradient of that by a formula. A client that has it trains by itself and without autograd
    (:mod:`fl.training.dense_cvae`): all parameters, in one stage."""
    optimizer: optimizers.AnyOptimizer
    anchor: Sequence[Tensor] | None = None
    """For a proximal optimiser: what it holds the parameters near; the start without it. For a
    corrected one: what it adds to their gradients."""
    epochs: Iterator[Epoch]
    """Draws from the client's own streams only. It is read once, each epoch to its end."""
    patience: int | None = None
    """Epochs without a lower mean loss after which the client stops; None: it never does."""
    held_out: "HeldOut | None" = None
    """Samples that are not trained on: their loss is then what patience looks at, and the weights
    with the lowest are those that the training ends with."""
    micro_batch: int | None = None
    """Samples that are passed at once; None: a step's."""
    client: int | None = None
    """The client's id, by which the end of each epoch is reported; without it none is."""
    upload: Callable[[], Tensors]
    """The tensors that the client uploads; called when the training is over."""
    trained: Sequence[nn.Parameter] | None = None
    """The parameters that are trained, where the others stay as they are; without it all that have
    a gradient."""
    then: "Callable[[], Recipe] | None" = None
    """The next stage of the client's training, of the same model; its upload counts. The client's
    task goes on to it (:mod:`fl.training.task`)."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained: those of a frozen layer have no step, whose weight
        decay would move them."""
        if self.trained is not None:
            return list(self.trained)
        return [p for p in self.model.parameters() if p.requires_grad]

    def freeze_others(self) -> None:
        """Has gradients computed for the parameters alone that are trained."""
        if self.trained is not None:
            self.model.requires_grad_(False)
            for parameter in self.trained:
                parameter.requires_grad_(True)


def own_steps(recipe: Recipe) -> str | None:
    """What the client's steps depend on beside batch and weights, so that they cannot be those of
    many clients, or one step replayed; None if on nothing."""
    if recipe.held_out or recipe.micro_batch:
        return "it is measured on samples of its own, or its batches are passed in parts"
    if isinstance(optimizers.innermost(recipe.optimizer), optimizers.Paced):
        return "its rate has a schedule, or its gradients a largest norm, by the client's own steps"
    return None


class HeldOut:
    """Asks a model about samples that it is not trained on, and keeps its best weights."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], float]) -> None:
        """``loss``: of the model as it is, over those samples."""
        self._model, self._loss = model, loss
        self._lowest, self._best = math.inf, dict[str, Tensor]()

    def measure(self) -> float:
        """The loss now."""
        self._model.eval()
        with torch.no_grad(), streams_restored():
            found = self._loss(self._model)
        self._model.train()
        if found < self._lowest:
            state = self._model.state_dict()
            self._lowest, self._best = found, {n: t.clone() for n, t in state.items()}
        return found

    def restore(self) -> None:
        """Gives the model the weights with the lowest loss."""
        if self._best:
            load_whole(self._model, self._best)


class LossesOf(nn.Module):
    """A recipe's losses as a module, so that torch.func finds them with other weights."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.model, self._losses = recipe.model, recipe.losses

    def forward(self, batch: Batch) -> Tensor:
        """The loss of each sample of a batch, (B,)."""
        return self._losses(self.model, batch)


class MeanLoss:
    """The mean loss of a client's samples over its last epoch, and over each before it."""

    def __init__(self, recipe: Recipe) -> None:
        """``recipe``: the client's, of which no epoch has begun."""
        self._recipe, self._planned = recipe, length_hint(recipe.epochs, 0) or None
        self.epochs = 0
        self._ended: list[tuple[Tensor | float, int]] = []
        self._lowest, self._lowest_at = math.inf, 0
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forgets the epoch before."""
        self._sum: Tensor | float = 0.0
        self._samples = 0

    def end_epoch(self) -> bool:
        """Whether the client stops here: so many epochs as it has patience have not lowered the
        loss, or that of the samples held out. The epoch's end is reported
        (:func:`fl.events.report`)."""
        recipe, total, samples = self._recipe, self._sum, self._samples
        self.epochs += 1
        self._ended.append((total, samples))
        measured = recipe.held_out.measure() if recipe.held_out else None
        if recipe.client is not None:
            read = partial(_mean, total, samples)
            report(recipe.client, self.epochs, self._planned, read)
        if recipe.patience is None:
            return False  # without reading the loss back from the device
        found = _mean(total, samples) if measured is None else measured
        if found < self._lowest:
            self._lowest, self._lowest_at = found, self.epochs
        return self.epochs - self._lowest_at >= recipe.patience

    def add(self, losses: Tensor) -> None:
        """Adds a batch's losses, (B,)."""
        self.add_sum(losses.detach().sum(), len(losses))

    def add_sum(self, total: Tensor | float, samples: int) -> None:
        """Adds a batch's sum of losses."""
        self._sum = self._sum + total
        self._samples += samples

    def output(self) -> TaskOutput:
        """What the client uploads when its training is over, with its losses."""
        stats = {"train_loss": _mean(self._sum, self._samples), "epochs": self.epochs}
        return TaskOutput(tensors=self._recipe.upload(), stats=stats, losses=self._by_epoch())

    def _by_epoch(self) -> list[float]:
        """The mean loss of each epoch, to five digits; read back from the device at once."""
        ended = [(torch.as_tensor(total), n) for total, n in self._ended if n]
        sums = torch.stack([total for total, _ in ended]).tolist() if ended else []
        return [float(f"{total / n:.5g}") for total, (_, n) in zip(sums, ended, strict=True)]


def _mean(total: Tensor | float, samples: int) -> float:
    return float(total) / max(1, samples)


def batches(recipe: Recipe, mean_loss: MeanLoss) -> Iterator[Batch]:
    """A client's batches to the end of its training.

    The caller adds each batch's losses to ``mean_loss`` before it takes the next batch.
    """
    for epoch in recipe.epochs:
        mean_loss.begin_epoch()
        yield from epoch
        if mean_loss.end_epoch():
            break
    if recipe.held_out:
        recipe.held_out.restore()


def optimizer_of(recipes: Sequence[Recipe]) -> optimizers.CohortOptimizer:
    """The optimiser of a cohort whose clients have these recipes."""
    optimizer = recipes[0].optimizer
    parameters = [recipe.parameters for recipe in recipes]
    # Not torch.optim, whose import takes a process a second and 90 MiB.
    if isinstance(optimizer, optimizers.Proximal | optimizers.Corrected):
        return optimizer.for_cohort(parameters, [recipe.anchor for recipe in recipes])
    return optimizer.for_cohort(parameters)


def one_by_one(inputs: TaskInput, recipe: Recipe) -> TaskOutput:
    """Trains one client by itself, for trainings that cannot run in a cohort."""
    recipe.freeze_others()
    mean_loss = MeanLoss(recipe)
    dropout = in_round("local/dropout", inputs.round)

    def steps() -> Iterator[Step]:
        for batch in batches(recipe, mean_loss):
            if recipe.micro_batch is not None:
                first, *more = parts_of(batch, recipe.micro_batch)
                rest = (_part_loss(recipe, part, batch, mean_loss) for part in more)
                yield Step(_part_loss(recipe, first, batch, mean_loss), more=rest)
                continue
            losses = recipe.losses(recipe.model, batch)
            yield Step(losses.mean() if recipe.reduction == "mean" else losses.sum())
            mean_loss.add(losses)

    with (
        seeded(inputs.run_spec.seed, dropout, inputs.client.id),
        # An anchor has the shapes of the weights as they are.
        Reduced(recipe.model, recipe.optimizer, when=recipe.anchor is None) as own,
    ):
        minimise(steps(), [recipe.parameters], optimizer_of([recipe]), own.scale_gradients)
    return mean_loss.output()


def parts_of(batch: Batch, size: int) -> list[Batch]:
    """The batch in parts of so many samples; none of an empty one."""
    starts = range(0, len(batch["labels"]), size)
    return [{n: column[k : k + size] for n, column in batch.items()} for k in starts]


def _part_loss(recipe: Recipe, part: Batch, whole: Batch, mean_loss: MeanLoss) -> Tensor:
    """A part's share of the loss of its whole batch."""
    losses = recipe.losses(recipe.model, part)
    mean_loss.add(losses)
    return losses.sum() / (len(whole["labels"]) if recipe.reduction == "mean" else 1)
