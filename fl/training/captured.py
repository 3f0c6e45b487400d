"""A step that a GPU replays: all its kernels by one call of the host, which waits for none.

The step must do the same every time: what changes from one to the next it reads on the device, at a
counter that it moves itself.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
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
from fl.training.reduced import Reduced
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
        device: where it works.
        calls: how often it will be called, about.
    """

    def __init__(self, device: torch.device, calls: int) -> None:
        self._eager = WARM_UP if can_capture(device) and calls >= WORTH_IT else -1
        """Calls before it is captured; below 0 it never is."""
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        """``work``: the function, each time the same. It is not kept: one of an object that holds
        this one would hold the graph's memory until Python looks for such circles."""
        if self._eager == 0 and self._graph is None:
            self._capture(work)
        if self._graph is not None:
            self._graph.replay()
        else:
            work()
            self._eager -= 1

    def _capture(self, work: Callable[[], None]) -> None:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # cuBLAS has memory for each stream on which it is captured: graphs that are replayed at the
        # same time, on several, must not share it. The default stream takes no capture.
        own = None if stream == torch.cuda.default_stream() else stream
        try:
            # It runs nothing. Another thread may meanwhile wait for a fit's state.
            with torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
                work()
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
        self.losses = torch.empty(0)
        """Of each step of the last epoch, (steps,), on the device."""
        self._numbers = torch.arange(whole).to(self._device)
        self._next = torch.zeros(1, dtype=torch.int64).to(self._device)
        self._full_step = Replayed(self._device, whole * epochs)

    def _parts(self, rows: Tensor, common: int) -> dict[str, Tensor]:
        """What is laid out of batches with these rows (batches, size), the widest numbers first:
        so each begins at a multiple of its own width."""
        short = {name: self._columns[name][rows] for name in self._short if name != "key"}
        parts = {**short, ROWS: rows, "key": mix(rows ^ common)}
        return dict(sorted(parts.items(), key=lambda item: -item[1].element_size()))

    def train(self, batches: Sequence[Tensor], common: int) -> Iterator[int]:
        """Takes an epoch's steps, and yields before each one its number, from 0.

        Args:
            batches: rows (B,) of the columns; full ones come before others.
            common: of the samples' keys: see :func:`fl.training.masks.key_of_all`.
        """
        whole = [rows for rows in batches if len(rows) == self._size]
        if whole:
            parts = self._parts(torch.stack(whole), common).values()
            flat = [part.flatten(1).contiguous().view(torch.uint8) for part in parts]
            self._laid[: len(whole)] = torch.cat(flat, 1)
        self._next.zero_()
        others = []
        for number, rows in enumerate(batches):
            yield number
            if number < len(whole):
                self._full_step(self._take_next)
            else:
                batch = {name: column[rows] for name, column in self._columns.items()}
                others.append(self._step({**batch, "key": mix(rows ^ common)}).view(1))
        full = [] if self._losses is None else [self._losses[: len(whole)]]
        self.losses = torch.cat([*full, *others])

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


# Clients' training by such steps: several side by side, for models too large for slots.
#
# The same training as one_by_one, but that dropout's masks follow from the sample: a replayed step
# cannot draw from torch's stream for one client.

STREAMS, LARGE = 8, 2**23
"""How many clients train side by side at most, and from how many weights on only two of them: two
full VGG-9s (27 million) fill a GPU, eight of quarter width (1.7 million) may not."""


def side_by_side(model: nn.Module) -> int:
    """How many clients with this model train side by side at most."""
    return 2 if sum(p.numel() for p in model.parameters()) >= LARGE else STREAMS


def train(inputs: Sequence[TaskInput], recipes: Sequence[Recipe]) -> list[TaskOutput]:
    """Trains clients side by side, by replayed steps where that is possible: a step of each in
    turn, on a stream of its own, so that a GPU works on several at once. No client's bits depend
    on the others. Returns what each uploads, in the same order."""
    at_work = {k: _steps(*own) for k, own in enumerate(zip(inputs, recipes, strict=True))}
    outputs: dict[int, TaskOutput] = {}
    with _streams(inputs[0].device, len(inputs)) as on_stream:
        while at_work:
            for k, steps in list(at_work.items()):
                try:
                    with on_stream[k]:
                        next(steps)
                except StopIteration as ended:
                    outputs[k] = ended.value
                    del at_work[k]
    return [outputs[k] for k in range(len(inputs))]


def _steps(inputs: TaskInput, recipe: Recipe) -> Generator[None, None, TaskOutput]:
    """One client's training, which yields before each step. At its end the device has done it all,
    as the losses are read: what was in the client's memory may be written to."""
    plan = planned(recipe)
    if plan is None or not can_capture(inputs.device):
        return one_by_one(inputs, recipe)
    recipe.freeze_others()
    mean_loss, mean = MeanLoss(recipe), recipe.reduction == "mean"
    epochs = length_hint(recipe.epochs)
    stream = f"{in_round('local/dropout', inputs.round)}/{inputs.client.id}"
    with (
        Reduced(recipe.model, recipe.optimizer, when=recipe.anchor is None) as own,
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
            for _ in steps.train(batches, key_of_all(inputs.run_spec.seed, stream, epoch)):
                yield
            # All but the last have one size.
            for losses, rows in ((steps.losses[:-1], batches[0]), (steps.losses[-1:], batches[-1])):
                size = len(rows)
                mean_loss.add_sum(losses.sum() * (size if mean else 1), size * len(losses))
            if mean_loss.end_epoch():
                break
    return mean_loss.output()


@contextmanager
def _streams(device: torch.device, count: int) -> Iterator[list[AbstractContextManager[object]]]:
    """For each of so many clients what to work in: on a GPU a stream, which begins after what was
    asked for before, and before what is asked for after."""
    if device.type != "cuda":
        yield [nullcontext()] * count
        return
    here, own = torch.cuda.current_stream(), [_stream(k % STREAMS) for k in range(count)]
    for stream in own:
        stream.wait_stream(here)
    try:
        yield [torch.cuda.stream(stream) for stream in own]
    finally:
        for stream in own:
            here.wait_stream(stream)


@lru_cache
def _stream(number: int) -> torch.cuda.Stream:
    """Always the same: the allocator keeps memory for each stream by itself."""
    return torch.cuda.Stream()


def planned(recipe: Recipe) -> Planned | None:
    """The client's batches, if a step of this training may be replayed; None if not."""
    drops = [layer for layer in recipe.model.modules() if isinstance(layer, AnyDropout)]
    if own_steps(recipe) or not is_ours(recipe):
        return None
    if not all(isinstance(layer, nn.Dropout) for layer in drops):
        return None
    plan = recipe.epochs.planned if isinstance(recipe.epochs, Epochs) else None
    return None if plan is None or plan.latent else plan
