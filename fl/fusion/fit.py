"""The server's training loop, the same for every method: tensors, a loss, epochs.

It runs on one rank or on many. All go through the same global batches in the same order; each
computes its slice of every batch, and the summed gradient is that of the global mean.
"""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl.errors import UserError
from fl.federation import Batch
from fl.fusion.draws import sample_keys
from fl.fusion.dropout import Masks, sample_dropout
from fl.fusion.gradients import Gradients
from fl.fusion.group import Group
from fl.fusion.whole_batch import WholeBatch, needs_whole_batch
from fl.models.ensemble import Ensemble
from fl.seeding import torch_generator
from fl.server import Loss
from fl.training.optimizers import SGD, Adam, KeptOptimizer
from fl.validate import at_least, choice, positive

PRECISIONS = ("fp32", "tf32", "bf16")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Training of the global model at the server."""

    epochs: int = 15
    """Epochs over the data."""
    lr: float = 5e-4
    """Learning rate."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimiser; sgd uses the momentum below."""
    momentum: float = 0.9
    """Momentum of sgd."""
    batch_size: int = 64
    """Samples per step, over all ranks together."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the steps: as it is, or falling to zero along a half cosine."""
    clip: float | None = None
    """Norm to which gradients are cut; of an ensemble each member's. Default: none."""
    test_every: int = 1
    """Epochs between two tests of the model; the last epoch is always tested."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic of forward and backward passes: tf32 rounds the factors of matrix products on
    GPUs that can, bf16 computes in bfloat16 where that is safe; weights stay in float32."""

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        positive("lr", self.lr)
        at_least("batch_size", self.batch_size, 1)
        at_least("test_every", self.test_every, 1)
        choice("precision", self.precision, PRECISIONS)
        choice("schedule", self.schedule, SCHEDULES)
        if self.clip is not None:
            positive("clip", self.clip)
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum must be in [0, 1), got {self.momentum}")


def changeable(name: str) -> tuple[str, ...]:
    """Settings of the fit of that name which may change where it is continued from a state."""
    return tuple(f"{name}.{setting}" for setting in ("lr", "momentum", "batch_size", "clip"))


class Fit:
    """Trains ``model`` in place, epoch by epoch.

    Args:
        model: on its device; left in train mode during an epoch, in eval mode at the end.
        data: tensors of one length, all of them on every rank, on the model's device or the host.
            A batch also has ``key`` (B,): see :mod:`fl.fusion.draws`.
        loss: of a model on a batch, a mean over the batch's samples.
        config: epochs, optimiser, batch size.
        seed: the run's seed; with ``stage`` it names the streams of order and dropout.
        stage: what this fit is called in the run.
        group: this rank and its peers.

    Raises:
        UserError: the result would depend on the number of ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Batch,
        *,
        loss: Loss,
        config: FitConfig,
        seed: int,
        stage: str,
        group: Group | None = None,
    ) -> None:
        self._group = group or Group()
        several = self._group.size > 1 and needs_whole_batch(model, loss)
        self._whole = WholeBatch(model, self._group) if several else None
        self._model, self._data, self._loss, self._config = model, data, loss, config
        self._seed, self._stage = seed, stage
        first = next(iter(data.values()))
        self._size, self._home = len(first), first.device
        self._device = next(model.parameters()).device
        self._optimizer = _optimizer(model, config)
        self._gradients = Gradients(model, loss, config.batch_size, self._group)
        self._done = 0

    def epochs(self) -> Iterator[Tensor]:
        """Trains an epoch and yields the loss of each of its steps, (steps,), until all are done.

        Between two epochs the model may be evaluated and the state be saved.
        """
        order = torch_generator(self._seed, f"{self._stage}/order")
        for epoch in range(1, self._config.epochs + 1):
            shuffled = torch.randperm(self._size, generator=order).to(self._home)
            if epoch > self._done:
                self._model.train()
                with (
                    sample_dropout(self._model) as masks,
                    self._gradients.watching(),
                    self._whole.watching() if self._whole else nullcontext(),
                    precision(self._config.precision),
                ):
                    batches = shuffled.split(self._config.batch_size)
                    losses = []
                    for number, rows in enumerate(batches):
                        self._set_rate((epoch - 1 + number / len(batches)) / self._config.epochs)
                        losses.append(self._step(epoch, rows, masks))
                self._done = epoch
                # One transfer an epoch: reading each step's loss would wait for the device.
                yield torch.stack(losses).cpu()
        self._model.eval()

    def _step(self, epoch: int, rows: Tensor, masks: Masks) -> Tensor:
        first, own = self._slice(rows)
        self._model.zero_grad()
        self._gradients.start_step(first, len(own))
        loss = torch.zeros((), device=self._device)
        if len(own) or self._whole:  # who has no sample still takes part in the sums
            batch, share = self._part(epoch, rows, first, own, masks)
            with torch.autocast(
                self._device.type, torch.bfloat16, self._config.precision == "bf16"
            ):
                loss = self._loss(self._model, batch) * share
            loss.backward()
        loss = self._gradients.sum(loss.detach())
        self._clip()
        self._optimizer.step([0])
        return loss

    def _part(
        self, epoch: int, rows: Tensor, first: int, own: Tensor, masks: Masks
    ) -> tuple[Batch, float]:
        """What this rank's loss is of, and its share in the whole batch's."""
        batch = self._batch(epoch, own)
        masks.start_step(batch["key"])
        if not self._whole:
            return batch, len(own) / len(rows)
        self._whole.start_step(first, len(own), len(rows))
        whole = self._batch(epoch, rows, but="images")
        return {**whole, "images": batch["images"]}, 1 / self._group.size

    def _set_rate(self, passed: float) -> None:
        """``passed``: the share of all steps that lies behind, 0 to 1."""
        if self._config.schedule == "cosine":
            self._optimizer.lr = self._config.lr * (1 + math.cos(math.pi * passed)) / 2

    def _clip(self) -> None:
        if self._config.clip is not None:
            model = self._model
            for part in model.members if isinstance(model, Ensemble) else [model]:
                nn.utils.clip_grad_norm_(part.parameters(), self._config.clip)

    def _slice(self, rows: Tensor) -> tuple[int, Tensor]:
        """This rank's part of a batch, and where in the batch it begins."""
        parts = rows.tensor_split(self._group.size)
        return sum(map(len, parts[: self._group.rank])), parts[self._group.rank]

    def _batch(self, epoch: int, rows: Tensor, but: str = "") -> Batch:
        columns = {name: tensor for name, tensor in self._data.items() if name != but}
        batch = {name: _take(tensor, rows, self._device) for name, tensor in columns.items()}
        key = sample_keys(self._seed, f"{self._stage}/dropout", epoch, rows)
        return {**batch, "key": key.to(self._device)}

    def state(self) -> bytes:
        """Everything that the rest of the fit depends on, beside what it was made of."""
        file = io.BytesIO()
        torch.save(
            {
                "epoch": self._done,
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state(),
            },
            file,
        )
        return file.getvalue()

    def load_state(self, state: bytes) -> int:
        """Continues where the fit was that gave ``state``; returns the epochs done there.

        The optimiser keeps its moments; its rate is this fit's own, which may have another.
        """
        loaded = load_state(state, self._device)
        self._model.load_state_dict(loaded["model"])
        self._optimizer.load_state(loaded["optimizer"])
        self._done = loaded["epoch"]
        return self._done


def load_state(state: bytes, device: torch.device) -> dict[str, Any]:
    """The ``epoch``, ``model`` and ``optimizer`` that :meth:`Fit.state` kept."""
    loaded: dict[str, Any] = torch.load(io.BytesIO(state), map_location=device, weights_only=True)
    return loaded


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Whether GPUs may round float32 factors to tf32, while it lasts."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name != "fp32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _take(tensor: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    taken = tensor[rows]
    if taken.device == device:
        return taken
    return taken.pin_memory().to(device, non_blocking=True)


def _optimizer(model: nn.Module, config: FitConfig) -> KeptOptimizer:
    adam = config.optimizer == "adam"
    settings = Adam(config.lr) if adam else SGD(config.lr, config.momentum)
    return settings.together([[p for p in model.parameters() if p.requires_grad]])
