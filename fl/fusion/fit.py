"""The server's training loop, the same for every method: tensors, a loss, epochs.

It runs on one rank or on many. All go through the same global batches in the same order; each
computes its slice of every batch, and the summed gradient is that of the global mean.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from fl.bounds import Count, NotNegative, Positive, Settings, Within
from fl.federation import Batch
from fl.fusion import whole_batch
from fl.fusion.group import Group
from fl.json_files import JsonObject
from fl.models.registry import smallest_batch
from fl.seeding import seed_for, seed_streams, streams_restored, torch_generator
from fl.server import Loss
from fl.training import captured
from fl.training.captured import DeviceSteps
from fl.training.masks import Masks, key_of_all, sample_dropout, sample_keys
from fl.training.optimizers import SGD, Adam
from fl.training.recipe import Step, cut, minimise
from fl.training.reduced import Reduced
from kernels.backends import fuses

Inference = Literal["fp32", "bf16"]
"""Arithmetic of passes without training."""
STATE_FORM = 4
"""Changes with what a fit's state holds: one of another form is not gone on from."""


@dataclass(frozen=True, kw_only=True)
class FitConfig(Settings):
    """Training of the global model at the server."""

    epochs: Count = 15
    """Epochs over the data."""
    lr: Positive = 5e-4
    """Learning rate."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimiser; sgd uses the momentum below."""
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    """Momentum of sgd."""
    batch_size: Count = 64
    """Samples per step, over all ranks together."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate schedule: constant, or falling to zero along a half cosine."""
    clip: Positive | None = None
    """Norm to which gradients are cut; of an ensemble each member's. Default: none."""
    test_every: Count = 1
    """Test the model every so many epochs; the last epoch is always tested."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of forward and backward passes: bf16 computes in bfloat16 where that is safe;
    weights stay in float32."""

    def make_optimizer(self) -> SGD | Adam:
        """The optimiser that these settings name."""
        return Adam(self.lr) if self.optimizer == "adam" else SGD(self.lr, self.momentum)

    def total_steps(self, rows: int) -> int:
        """Steps of the whole fit on so many samples."""
        return self.epochs * -(-rows // self.batch_size)

    def rate(self, epoch: int, passed: float) -> float:
        """Learning rate in an epoch of which a share has passed, 0 to 1."""
        if self.schedule == "constant":
            return self.lr
        share = (epoch - 1 + passed) / self.epochs
        return self.lr * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True, kw_only=True)
class DecayedFitConfig(FitConfig):
    """Training at the server with weight decay."""

    weight_decay: NotNegative = 0.0
    """Weight decay of the optimiser."""

    def make_optimizer(self) -> SGD | Adam:
        """The optimiser that these settings name."""
        return replace(super().make_optimizer(), weight_decay=self.weight_decay)


# A fit's state, put aside while the fit goes on: a GPU's travels to the host meanwhile.


class State:
    """Values as they were when they were put aside: tensors on the host, in dicts and lists.

    Pickled it waits for them, and is these values.
    """

    def __init__(
        self,
        values: JsonObject,
        arrived: torch.cuda.Event | None = None,
        sent: JsonObject | None = None,
    ) -> None:
        """
        Args:
            values: on the host, or on their way there.
            arrived: when they are there.
            sent: what is copied from a GPU: its memory must not be used again before it arrived.
        """
        self._values, self._arrived, self._sent = values, arrived, sent

    @property
    def values(self) -> JsonObject:
        """The values; waits until they are here."""
        arrived = self._arrived  # another thread, which writes them, may ask meanwhile
        if arrived is not None:
            arrived.synchronize()
            self._arrived, self._sent = None, None
        return self._values

    def on(self, device: torch.device) -> JsonObject:
        """The values on a device; on the host these tensors themselves."""
        return _each(self.values, lambda tensor: tensor.to(device))

    def __reduce__(self) -> tuple[type["State"], tuple[JsonObject]]:
        return State, (self.values,)


def put_aside(values: JsonObject, device: torch.device) -> State:
    """A state of these values. The host does not wait for ``device``, where the tensors are: they
    are copied there at once, and by a stream of their own to pinned memory."""
    copies = _each(values, lambda tensor: tensor.detach().clone())
    if device.type != "cuda":
        return State(copies)
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        values = _each(copies, _to_pinned)
        return State(values, aside.record_event(), copies)


def _to_pinned(tensor: Tensor) -> Tensor:
    there = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return there.copy_(tensor, non_blocking=True)


def _each(values: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The values with the function of each tensor in its place."""
    if isinstance(values, dict):
        return {name: _each(value, function) for name, value in values.items()}
    if isinstance(values, list):
        return [_each(value, function) for value in values]
    return function(values) if isinstance(values, Tensor) else values


@dataclass(frozen=True, kw_only=True)
class FitSpec:
    """All that the ranks need for a fit, as the server passes it to them."""

    model: nn.Module
    """The model to train."""
    columns: Mapping[str, Sequence[Tensor]]
    """The data by name: all ranks' blocks of rows, in the form in which the server holds them."""
    loss: Loss
    """The loss of a model on a batch. Ranks share a batch's rows if a user's loss has an attribute
    ``whole_batch``: false if it is a mean over samples, true if not. It must then give the model
    one row for each sample, in their order. See :mod:`fl.fusion.whole_batch`."""
    config: FitConfig
    stage: str
    """Name of the fit in the run."""
    streams: str
    """Name of its random streams: the stage, in its round."""
    tested: bool = True
    """Whether the model is a classifier, to be tested between epochs."""
    inference: Inference = "fp32"
    """Arithmetic of these tests."""
    until: int | None = None
    """The last epoch to train now; None for the last of all."""
    state: State | None = None
    """State after the epochs trained before, made by :meth:`Fit.state`; None to start anew."""
    state_every: float | None = None
    """Seconds between two states to report; the last epoch's is one. None for none."""

    @property
    def last(self) -> int:
        """The last epoch to be trained now."""
        return self.config.epochs if self.until is None else self.until


class Fit:
    """Trains the spec's model in place, epoch by epoch.

    Args:
        spec: what to train, and how; its model on its device, left in train mode during an epoch
            and in eval mode at the end. If it has a state, the fit goes on from there.
        data: tensors of one length, all of them on every rank, on the model's device or the host.
            A batch also has ``key`` (B,): see :mod:`fl.training.masks`.
        seed: the run's seed; with the spec's ``streams`` it names those of order and dropout.
        group: this rank and its peers.

    Raises:
        UserError: with several ranks, where batches must be whole, the loss gave the model other
            rows than the batch's.
    """

    def __init__(
        self, spec: FitSpec, data: Batch, *, seed: int, group: Group | None = None
    ) -> None:
        model, config = spec.model, spec.config
        self._spec, self._model, self._config = spec, model, config
        self._data, self._seed = data, seed
        first = next(iter(data.values()))
        self._size, self._home = len(first), first.device
        self._device = next(model.parameters()).device
        ours = whole_batch.is_our_model(model)
        self._ours = ours and whole_batch.is_our_loss(spec.loss)
        self._apart = ours or "images" in data
        if self._apart and not ours:
            batch = data["images"][: config.batch_size].to(self._device)
            self._apart = whole_batch.keeps_rows_apart(model, batch)
        self._group = group or Group()
        self.undivided = self._undivided() if self._group.size > 1 else None
        """Why each of several ranks trains on whole batches; None if they share them."""
        if self.undivided:
            self._group = Group()
        several = self._group.size > 1 and whole_batch.needs_whole_batch(model, spec.loss)
        self._whole = whole_batch.WholeBatch(model, self._group) if several else None
        # Cutting gradients needs the norm that they have for the model's own weights.
        self._reduced = Reduced(model, config.make_optimizer(), when=config.clip is None)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = config.make_optimizer().for_cohort([self._parameters])
        self._masks = Masks()
        self._one = torch.ones((), device=self._device) if fuses(self._device) else None
        self._rate = None
        if captured.can_capture(self._device) and config.schedule != "constant":
            self._rate = self._optimizer.lr = torch.zeros((), device=self._device)
        self.done = 0
        """Epochs trained so far."""
        if spec.state:
            self._load_state(spec.state)
        self._steps = None
        if self._home == self._device and self._group.size == 1:
            # A user's code may do in one step what it does not do in another: none is replayed.
            left = spec.last - self.done if self._ours else 0
            self._steps = DeviceSteps(data, config.batch_size, self._step, left)

    def _undivided(self) -> str | None:
        """Why not every rank can take a slice of each batch, so that each takes all of it."""
        apart = torch.tensor([float(self._apart)], device=self._device)
        self._group.sum(apart)  # that all ranks do the same
        name = type(self._model).__name__
        if apart < self._group.size:
            self._apart = False
            if "images" in self._data:
                return f"{name} mixes a batch's rows, draws numbers or counts in training"
            return f"{name} cannot be tried without a column images"
        if whole_batch.says_what_it_is(self._spec.loss):
            return None
        return "its loss has no attribute whole_batch, to be False for a mean over samples"

    def epochs(self) -> Iterator[Tensor]:
        """Trains an epoch and yields the loss of each of its steps, (steps,), until all are done.

        Between two epochs the model may be evaluated and the state be saved.
        """
        order = torch_generator(self._seed, f"{self._spec.streams}/order")
        try:
            for epoch in range(1, self._spec.last + 1):
                shuffled = torch.randperm(self._size, generator=order).to(self._home)
                if epoch > self.done:
                    batches = cut(shuffled, self._config.batch_size, smallest_batch(self._model))
                    losses = self._train(epoch, batches)
                    self.done = epoch
                    # One transfer an epoch: reading each step's loss would wait for the device.
                    yield losses.cpu()
        finally:
            self._reduced.undo()
        self._model.eval()

    def _train(self, epoch: int, batches: Sequence[Tensor]) -> Tensor:
        """Trains one epoch; the loss of each step, (steps,), over the whole batch."""
        self._model.train()
        with (
            self._dropout() as self._masks,
            self._whole.watching() if self._whole else nullcontext(),
            nullcontext() if self._ours else streams_restored(),
        ):
            if self._steps is None:
                return self._train_with_others(epoch, batches)
            common = key_of_all(self._seed, f"{self._spec.streams}/dropout", epoch)
            for number in self._steps.train(batches, common):
                self._begin_step(epoch, len(batches), number)
            return self._steps.losses

    def _dropout(self) -> AbstractContextManager[Masks]:
        if not self._apart:
            return nullcontext(Masks())
        return sample_dropout(self._model, fused=self._ours)

    def _step(self, batch: Batch) -> Tensor:
        """A step of this rank alone; returns its loss."""
        self._masks.start_step(batch["key"])
        bf16 = self._config.precision == "bf16"
        # What is cast once for several steps is not cast when a step is replayed.
        cached = not captured.can_capture(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, bf16, cached):
            loss = self._loss(batch)
        step = Step(loss, one=self._one)
        minimise([step], [self._parameters], self._optimizer, self._adjust)
        return loss.detach()

    def _train_with_others(self, epoch: int, batches: Sequence[Tensor]) -> Tensor:
        """One epoch of this rank's slices of the batches, or of samples on the host."""
        losses: list[Tensor] = []
        own = torch.empty(0)

        def steps() -> Iterator[Step]:
            nonlocal own
            for number, rows in enumerate(batches):
                self._begin_step(epoch, len(batches), number)
                own = self._own_loss(epoch, rows)
                yield Step(own)

        def exchange() -> None:
            losses.append(self._summed(own.detach()))
            self._adjust()

        minimise(steps(), [self._parameters], self._optimizer, exchange)
        return torch.stack(losses)

    def _summed(self, loss: Tensor) -> Tensor:
        """The loss summed over the ranks, whose gradients are summed in the same exchange."""
        if self._group.size == 1:
            return loss
        for parameter in self._parameters:
            if parameter.grad is None:  # a rank without samples
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        flat = torch.cat([*(g.flatten() for g in gradients), loss.view(1)])
        self._group.sum(flat)
        *parts, total = flat.split([*(g.numel() for g in gradients), 1])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return total.squeeze(0)

    def _begin_step(self, epoch: int, batches: int, number: int) -> None:
        if not self._ours:  # which may draw from the global streams
            name = f"{self._spec.streams}/global/{epoch}/{number}"
            seed_streams(seed_for(self._seed, name))
        rate = self._config.rate(epoch, number / batches)
        if self._rate is None:
            self._optimizer.lr = rate
        else:  # which a captured step reads
            self._rate.fill_(rate)

    def _adjust(self) -> None:
        """Changes the gradients between the backward pass and the update."""
        self._reduced.scale_gradients()
        if self._config.clip is not None:
            for part in whole_batch.members_of(self._model):
                nn.utils.clip_grad_norm_(part.parameters(), self._config.clip)

    def _own_loss(self, epoch: int, rows: Tensor) -> Tensor:
        """This rank's share of the batch's loss."""
        first, own = self._slice(rows)
        if not len(own) and not self._whole:  # a rank without samples still takes part in the sums
            return torch.zeros((), device=self._device)
        batch, share = self._part(epoch, rows, first, own)
        with torch.autocast(self._device.type, torch.bfloat16, self._config.precision == "bf16"):
            return self._loss(batch) * share

    def _loss(self, batch: Batch) -> Tensor:
        """The loss of a batch; one of a single element, as a user's may be, as a scalar."""
        loss = self._spec.loss(self._model, batch)
        return loss.squeeze() if loss.dim() else loss

    def _part(self, epoch: int, rows: Tensor, first: int, own: Tensor) -> tuple[Batch, float]:
        """The batch that this rank's loss is of, and the factor on that loss."""
        batch = self._batch(epoch, own)
        self._masks.start_step(batch["key"])
        if not self._whole:
            return batch, len(own) / len(rows)
        self._whole.start_step(first, len(own), len(rows))
        whole = self._batch(epoch, rows, but="images")
        return {**whole, "images": batch["images"]}, 1 / self._group.size

    def _slice(self, rows: Tensor) -> tuple[int, Tensor]:
        """Where this rank's slice of a batch begins, and its rows."""
        if self._whole and len(rows) < self._group.size:
            return 0, rows  # for each rank: a user's model may not take a batch without rows
        parts = rows.tensor_split(self._group.size)
        return sum(map(len, parts[: self._group.rank])), parts[self._group.rank]

    def _batch(self, epoch: int, rows: Tensor, but: str = "") -> Batch:
        columns = {name: tensor for name, tensor in self._data.items() if name != but}
        batch = {name: _take(tensor, rows, self._device) for name, tensor in columns.items()}
        key = sample_keys(self._seed, f"{self._spec.streams}/dropout", epoch, rows)
        return {**batch, "key": key.to(self._device)}

    def state(self) -> State:
        """Everything that the rest of the fit depends on, beside the arguments it was made with.

        After the last epoch that is the model alone; an optimiser's moments are twice its size.
        """
        over = self.done == self._config.epochs
        values = {
            "epoch": self.done,
            "model": self._reduced.whole(),
            "reduced": self._reduced.weights,
            "optimizer": {} if over else self._optimizer.state(),
        }
        return put_aside(values, self._device)

    def _load_state(self, state: State) -> None:
        """Restores model, optimiser moments and epoch; the rate is this fit's, which may differ."""
        loaded = state.on(self._device)
        self._reduced.load(loaded["model"], loaded["reduced"])
        self.done = loaded["epoch"]
        if self.done < self._config.epochs:
            self._optimizer.load_state(loaded["optimizer"])


def _take(tensor: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    taken = tensor[rows]
    if taken.device == device:
        return taken
    return taken.pin_memory().to(device, non_blocking=True)
