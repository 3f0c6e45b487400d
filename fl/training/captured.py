"""A step that a GPU replays: all its kernels by one call of the host, which waits for none.

The step must do the same every time: what changes from one to the next it reads on the device, at a
counter that it moves itself.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import length_hint

import torch
from torch import Tensor, nn

from fl.federation import Batch, TaskInput, TaskOutput
from fl.models.common import AnyDropout
from fl.models.registry import MODELS
from fl.seeding import in_round
from fl.training.masks import key_of_all, sample_dropout
from fl.training.recipe import (
    Epochs,
    MeanLoss,
    Planned,
    Recipe,
    Step,
    minimise,
    one_by_one,
    optimizer_of,
    own_steps,
)
from fl.training.reduced import reduced
from kernels.backends import fuses
from kernels.dropout import mix

WARM_UP = 2
"""Steps before the captured one: in the first, libraries allocate what they keep."""

WORTH_IT = 32
"""Steps from which on capturing one saves more than it takes."""

log = logging.getLogger(__name__)


def can_capture(device: torch.device) -> bool:
    """Whether steps are captured there."""
    return device.type == "cuda"


class Replayed:
    """A function without arguments, called as it is or, on a GPU after some calls, by replaying
    what it did there once.

    Args:
        work: the function.
        device: where it works.
        calls: how often it will be called, about.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, calls: int) -> None:
        self._work = work
        self._eager = WARM_UP if can_capture(device) and calls >= WORTH_IT else -1
        """Calls before it is captured; below 0 it never is."""
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._eager == 0 and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._work()
            self._eager -= 1

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # It runs nothing. Another thread may meanwhile wait for a fit's state.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._work()
            self._graph = graph
        except RuntimeError as error:  # the step asks the device something, or copies from the host
            log.warning("a training step cannot be captured, and runs slower: %s", error)
            self._eager = -1


LAID_OUT = 1024
"""Bytes of a row up to which a column is put into an epoch's order at once."""

ROWS = "/rows"
"""The name of their numbers, which no column has."""


class DeviceSteps:
    """Steps on batches of samples that lie on the device. What differs from one full batch to the
    next is read there, at a counter, so that a GPU replays one step for all of them.

    At an epoch's beginning its full batches are laid out, one after the other: each one's rows and
    keys and, of columns with short rows, what these hold. So a step reads all of that at once.
    """

    def __init__(
        self, columns: Batch, size: int, step: Callable[[Batch], Tensor], epochs: int
    ) -> None:
        """``step``: takes some rows of the columns, with their keys as ``key`` (B,), ``size`` of
        them in a full batch; returns its loss, a scalar."""
        self._columns, self._size, self._step = columns, size, step
        first = next(iter(columns.values()))
        self._device, whole = first.device, len(first) // size
        self._short = [name for name, own in columns.items() if own[:1].nbytes <= LAID_OUT]
        one = self._parts(torch.zeros(1, size, dtype=torch.int64).to(self._device), 0)
        self._forms = {name: (part.dtype, part.shape[1:]) for name, part in one.items()}
        self._bytes = [part.nbytes for part in one.values()]
        self._laid = torch.zeros(whole, sum(self._bytes), dtype=torch.uint8).to(self._device)
        self._losses: Tensor | None = None
        self._numbers = torch.arange(whole).to(self._device)
        self._next = torch.zeros(1, dtype=torch.int64).to(self._device)
        self._full_step = Replayed(self._take_next, self._device, whole * epochs)

    def _parts(self, rows: Tensor, common: int) -> dict[str, Tensor]:
        """What is laid out of batches with these rows (batches, size), the widest numbers first:
        so each begins at a multiple of its own width."""
        short = {name: self._columns[name][rows] for name in self._short if name != "key"}
        parts = {**short, ROWS: rows, "key": mix(rows ^ common)}
        return dict(sorted(parts.items(), key=lambda item: -item[1].element_size()))

    def train(
        self,
        batches: Sequence[Tensor],
        common: int,
        before: Callable[[int], None] = lambda number: None,
    ) -> list[Tensor]:
        """Takes an epoch's steps; returns the loss of each, on the device.

        Args:
            batches: rows (B,) of the columns; full ones come before others.
            common: of the samples' keys: see :func:`fl.training.masks.key_of_all`.
            before: called before each step, with its number from 0.
        """
        whole = [rows for rows in batches if len(rows) == self._size]
        if whole:
            parts = self._parts(torch.stack(whole), common).values()
            flat = [part.flatten(1).contiguous().view(torch.uint8) for part in parts]
            self._laid[: len(whole)] = torch.cat(flat, 1)
        self._next.zero_()
        others = []
        for number, rows in enumerate(batches):
            before(number)
            if number < len(whole):
                self._full_step()
            else:
                batch = {name: column[rows] for name, column in self._columns.items()}
                others.append(self._step({**batch, "key": mix(rows ^ common)}))
        full = [] if self._losses is None else list(self._losses[: len(whole)].clone())
        return [*full, *others]

    def _take_next(self) -> None:
        pieces = self._laid.index_select(0, self._next)[0].split(self._bytes)
        laid = {
            # Of its own version: a user's loss may change one in place, and autograd need another.
            name: piece.view(dtype).view(shape).data
            for (name, (dtype, shape)), piece in zip(self._forms.items(), pieces, strict=True)
        }
        rows, key = laid.pop(ROWS), laid.pop("key")
        columns = self._columns.items()
        batch = {n: laid[n] if n in laid else column[rows] for n, column in columns}
        loss = self._step({**batch, "key": key})
        if self._losses is None:  # in the first step, of the losses' type
            self._losses = loss.new_zeros(len(self._laid))
        self._record(loss, self._losses)

    def _record(self, loss: Tensor, losses: Tensor) -> None:
        """Keeps the step's loss, and goes on to the next one."""
        if fuses(self._device):
            from kernels.triton_fused import record

            record(losses, loss, self._next)
            return
        # Not index_copy_, for which CUDA sorts, as it must be deterministic.
        torch.where(self._numbers == self._next, loss, losses, out=losses)
        self._next += 1


def is_ours(recipe: Recipe) -> bool:
    """Whether a client's model and loss are of this package: a user's code may do in one step what
    it does not do in another, and a replayed step would not."""
    built, losses = vars(recipe.model).get("built_as"), recipe.losses
    while isinstance(losses, partial):  # of a function that takes another one
        losses = losses.args[0] if losses.args else losses.func
    own = hasattr(recipe.model, "training_loss") or "own_loss" in vars(recipe.model)
    own = own or bool(built and MODELS[built.model].source)
    return not own and getattr(losses, "__module__", "").partition(".")[0] == "fl"


# One client's training by such steps, for models that fill a GPU by themselves.
#
# The same training as one_by_one, but that dropout's masks follow from the sample: a replayed step
# cannot draw from torch's stream for one client.


def train(inputs: TaskInput, recipe: Recipe) -> TaskOutput:
    """Trains one client by itself, by replayed steps where that is possible."""
    plan = planned(recipe)
    if plan is None or not can_capture(inputs.device):
        return one_by_one(inputs, recipe)
    recipe.freeze_others()
    mean_loss, mean = MeanLoss(recipe), recipe.reduction == "mean"
    epochs = length_hint(recipe.epochs)
    stream = f"{in_round('local/dropout', inputs.round)}/{inputs.client.id}"
    with (
        reduced(recipe.model, recipe.optimizer, when=recipe.anchor is None) as own,
        sample_dropout(recipe.model, fused=True) as masks,
    ):
        optimizer, one = optimizer_of([recipe]), torch.ones((), device=inputs.device)

        def step(batch: Batch) -> Tensor:
            masks.start_step(batch["key"])
            losses = recipe.losses(recipe.model, batch)
            loss = losses.mean() if mean else losses.sum()
            minimise([Step(loss, one=one)], [recipe.parameters], optimizer, own.scale_gradients)
            return loss.detach()

        steps = DeviceSteps(plan.columns, plan.batch_size, step, epochs)
        for epoch in range(1, epochs + 1):
            mean_loss.begin_epoch()
            batches = [rows for rows, _ in plan.epoch(inputs.device)]
            common = key_of_all(inputs.run_spec.seed, stream, epoch)
            for rows, loss in zip(batches, steps.train(batches, common), strict=True):
                mean_loss.add_sum(loss * len(rows) if mean else loss, len(rows))
            if mean_loss.end_epoch():
                break
    return mean_loss.output()


def planned(recipe: Recipe) -> Planned | None:
    """The client's batches, if a step of this training may be replayed; None if not."""
    drops = [layer for layer in recipe.model.modules() if isinstance(layer, AnyDropout)]
    if own_steps(recipe) or not is_ours(recipe):
        return None
    if not all(isinstance(layer, nn.Dropout) for layer in drops):
        return None
    plan = recipe.epochs.planned if isinstance(recipe.epochs, Epochs) else None
    return None if plan is None or plan.latent else plan
