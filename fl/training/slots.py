"""Many small clients' training on a GPU: one step of all of them, captured once and replayed.

A wave of clients has a model with a leading axis: each of its slots holds the weights of one
client, and a step of the wave is a step of each. All that a step reads lies on the device: the
samples of all clients, and for some steps ahead the rows, the noise and the share of every row. A
counter there says which of these steps is next, so the step is the same program every time: a CUDA
graph, which the host replays without waiting for anything.

A wave always has the same number of slots, so that the libraries choose the same kernels and a
client's bits do not depend on its company. A slot without a client computes what nobody reads, as
does one whose client is done. On a CPU the same code runs step by step, for tests: there
:mod:`fl.training.stacked` is faster, and on some CPUs the last bits depend on the slot.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import length_hint
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fl.federation import Batch, TaskOutput
from fl.training import captured
from fl.training.captured import Replayed, is_ours
from fl.training.dense_cvae import flattened, parameters_of
from fl.training.recipe import Epochs, LossesOf, MeanLoss, Planned, Recipe, optimizer_of, own_steps
from fl.training.stacked import Stepped, difference
from kernels.cvae import fused

SLOTS = 256
"""Clients of a wave."""
LARGEST = 2**19
"""Weights of a model that is trained in slots. Larger ones keep a GPU busy by themselves."""
AHEAD = 64
"""Steps that are sent to the device at once."""


def suits(device: torch.device) -> bool:
    """Whether clients train in slots there."""
    return captured.can_capture(device)


def train(recipes: Sequence[Recipe], slots: int) -> list[TaskOutput]:
    """Trains the clients' models as one wave; returns what each uploads, in the same order.

    The recipes, no more than ``slots``, have the same model (except for its weights), losses and
    optimiser. None has a :func:`conflict`.
    """
    return _Wave(recipes, slots).run()


class Stack:
    """Models of one architecture as one with a leading axis, and the optimiser of them all.

    Args:
        recipes: of the clients; of fewer than ``slots`` the first stands in the others too.
        slots: length of the axis, S.
    """

    def __init__(self, recipes: Sequence[Recipe], slots: int) -> None:
        first = recipes[0]
        padded = [*recipes, *[first] * (slots - len(recipes))]
        names = {id(p): name for name, p in first.model.named_parameters()}
        trained = [names[id(p)] for p in first.parameters]
        models = [recipe.model for recipe in padded]
        tensors = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in models]
        stacked = {
            name: torch.stack([own[name].detach() for own in tensors]).contiguous()
            for name in tensors[0]
        }
        self.weights = {name: stacked.pop(name) for name in trained}
        """Of the parameters that are trained, (S, ...) each."""
        self.fixed = stacked
        """Of all others, and of the buffers."""
        anchors = [list(r.anchor) for r in padded if r.anchor is not None]
        anchor = [torch.stack(own) for own in zip(*anchors, strict=True)] if anchors else None
        every = replace(first, trained=list(self.weights.values()), anchor=anchor)  # type: ignore[arg-type]
        self._formula = None
        if first.gradient is not None:
            order = [self.weights[names[id(p)]] for p in parameters_of(first.model)]
            weights = flattened(order, stacked=True)
            self._formula = first.gradient(weights)
            every = replace(every, trained=[weights])  # type: ignore[list-item]
        self._optimizer = optimizer_of([every])
        losses = LossesOf(first)

        def objective(
            weights: Batch, fixed: Batch, batch: Batch, shares: Tensor
        ) -> tuple[Tensor, Tensor]:
            own = {f"model.{name}": tensor for name, tensor in {**weights, **fixed}.items()}
            found = functional_call(losses, own, (batch,))
            return found.dot(shares), found

        self._gradient = vmap(grad(objective, has_aux=True))

    def step(self, batch: Batch, shares: Tensor) -> Tensor:
        """Moves each slot's weights along the gradient of its loss; returns the losses, (S, B).

        Args:
            batch: of each slot, (S, B, ...).
            shares: each sample's part in its slot's loss, (S, B); 0 for one that does not count.
        """
        if self._formula is not None:
            losses = self._formula(batch, shares)
        else:
            gradients, losses = self._gradient(self.weights, self.fixed, batch, shares)
            for name, weight in self.weights.items():
                weight.grad = gradients[name].contiguous()
        self._optimizer.step((0,))
        return losses.detach()

    @torch.no_grad()
    def unstack(self, slot: int, model: nn.Module) -> None:
        """Gives a slot's weights to a model."""
        for name, weight in self.weights.items():
            model.get_parameter(name).copy_(weight[slot])


class _Wave:
    """One wave of clients, from their first step to the last upload."""

    def __init__(self, recipes: Sequence[Recipe], slots: int) -> None:
        first = recipes[0]
        self._recipes, self._mean = recipes, first.reduction == "mean"
        self._classes = first.model.num_classes if first.gradient is not None else 0
        self._stack = Stack(recipes, slots)
        plans = [_plan(recipe) for recipe in recipes]
        names, latent = plans[0].columns, plans[0].latent
        self._columns = {name: torch.cat([plan.columns[name] for plan in plans]) for name in names}
        starts = [0]
        for plan in plans:
            starts.append(starts[-1] + len(plan.columns["labels"]))
        self._clients = [_Client(*own) for own in zip(recipes, plans, starts, strict=False)]
        device = self._columns["labels"].device
        shape = AHEAD, slots, plans[0].batch_size
        on_host = {"order": torch.zeros(shape, dtype=torch.int64), "shares": torch.zeros(shape)}
        if latent:
            on_host["noise"] = torch.zeros(*shape, latent)
        self._host = {
            name: tensor.pin_memory() if device.type == "cuda" else tensor
            for name, tensor in on_host.items()
        }
        self._ahead = {name: tensor.to(device) for name, tensor in on_host.items()}
        self._seen = torch.zeros(AHEAD, slots, device=device)
        """Each slot's sum of losses in each of these steps."""
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        steps = max(-(-len(plan.columns["labels"]) // plan.batch_size) for plan in plans)
        self._step = Replayed(device, steps * length_hint(recipes[0].epochs))

    def run(self) -> list[TaskOutput]:
        """Trains until every client is done; returns what they upload."""
        outputs: dict[int, TaskOutput] = {}
        while at_work := {k: c for k, c in enumerate(self._clients) if k not in outputs}:
            count = min(AHEAD, *(client.ready() for client in at_work.values()))
            self._send(at_work, count)
            for _ in range(count):
                self._step(self._take)
            seen = self._seen[:count].cpu()
            for k, client in at_work.items():
                if client.has_ended(seen[:, k].tolist()):
                    self._stack.unstack(k, self._recipes[k].model)
                    outputs[k] = client.losses.output()
        return [outputs[k] for k in range(len(self._recipes))]

    def _send(self, at_work: dict[int, "_Client"], count: int) -> None:
        """Sends the device the clients' next steps."""
        host = self._host
        host["shares"].zero_()
        for k, client in at_work.items():
            for t, step in enumerate(client.take(count)):
                n = len(step.rows)
                host["order"][t, k, :n] = step.rows
                host["order"][t, k, n:] = step.rows[0]  # what does not count is its own too
                host["shares"][t, k, :n] = 1 / n if self._mean else 1.0
                if step.noise is not None:
                    host["noise"][t, k, :n] = step.noise
        for name, tensor in self._ahead.items():
            tensor.copy_(host[name], non_blocking=True)
        self._next.zero_()

    def _take(self) -> None:
        """One step of every slot: reads what stands at the counter, and moves the counter."""
        if self._classes:
            given, ahead = self._columns, self._ahead
            inputs, noise, shares = fused.take(
                *(given["images"].flatten(1), given["labels"]),
                *(ahead["order"], ahead["noise"], ahead["shares"], self._next, self._classes),
            )
            batch = {"inputs": inputs, "noise": noise}
        else:
            batch = {name: t.index_select(0, self._next)[0] for name, t in self._ahead.items()}
            order, shares = batch.pop("order"), batch.pop("shares")
            for name, column in self._columns.items():
                batch[name] = column.index_select(0, order.flatten()).unflatten(0, order.shape)
        losses = self._stack.step(batch, shares)
        fused.count(losses.contiguous(), shares, self._seen, self._next)


class _Step(NamedTuple):
    """A step that a client is to take."""

    rows: Tensor
    """Of the wave's columns, (B,)."""
    noise: Tensor | None
    first: bool
    """Whether an epoch begins with it."""
    last: bool


class _Client:
    """One client of a wave: which steps it takes next, and what became of them."""

    def __init__(self, recipe: Recipe, plan: Planned, start: int) -> None:
        """``start``: where the client's samples begin in the wave's columns."""
        self._patience, self._plan, self._start = recipe.patience, plan, start
        self._left = length_hint(recipe.epochs)
        self._planned: deque[_Step] = deque()
        self._taken: list[_Step] = []
        self.losses = MeanLoss(recipe)

    def ready(self) -> int:
        """Steps that it may take before its losses must be looked at: up to the end of an epoch
        behind which it may stop, or of its training."""
        while self._left and len(self._planned) < (1 if self._patience else AHEAD):
            self._left -= 1
            batches = list(self._plan.epoch(torch.device("cpu")))
            for k, (rows, noise) in enumerate(batches):
                step = _Step(rows + self._start, noise, k == 0, k == len(batches) - 1)
                self._planned.append(step)
        return len(self._planned)

    def take(self, count: int) -> list[_Step]:
        """The next steps."""
        self._taken = [self._planned.popleft() for _ in range(count)]
        return self._taken

    def has_ended(self, sums: Sequence[float]) -> bool:
        """Whether its training is over, by the sum of losses of each step that was taken."""
        stops = False
        for step, total in zip(self._taken, sums, strict=True):
            if step.first:
                self.losses.begin_epoch()
            self.losses.add_sum(total, len(step.rows))
            if step.last:
                stops = self.losses.end_epoch()
        return stops or not (self._left or self._planned)


def _plan(recipe: Recipe) -> Planned:
    assert isinstance(recipe.epochs, Epochs)
    assert recipe.epochs.planned is not None
    return recipe.epochs.planned


def conflict(probe: Recipe) -> str | None:
    """Why clients cannot train like this in slots; None if they can.

    ``probe`` is a recipe made for this check alone: its first batch is used up.
    """
    if sum(p.numel() for p in probe.model.parameters()) > LARGEST:
        return f"its model has more than {LARGEST} weights"
    if not is_ours(probe):
        return "its model or its loss is not of this package"
    if not isinstance(probe.epochs, Epochs) or probe.epochs.planned is None:
        return "its batches are made one by one"
    if reason := own_steps(probe):
        return reason
    return difference(probe, _one_step)


def _one_step(recipes: Sequence[Recipe], batches: Sequence[Batch]) -> Stepped:
    """The clients step in slots, one for each."""
    sizes = [len(batch["labels"]) for batch in batches]
    shares = torch.zeros(len(sizes), max(sizes), device=batches[0]["labels"].device)
    for own, n in zip(shares, sizes, strict=True):
        own[:n] = 1 / n if recipes[0].reduction == "mean" else 1.0
    every = torch.arange(max(sizes), device=shares.device)
    rows = [every.where(every < n, 0) for n in sizes]  # what does not count is its own too
    whole = {
        name: torch.stack([own[name][k] for own, k in zip(batches, rows, strict=True)])
        for name in batches[0]
    }
    stack, of_each = Stack(recipes, len(recipes)), range(len(recipes))

    def step() -> Tensor:
        losses = stack.step(whole, shares)
        return torch.cat([own[:n] for own, n in zip(losses, sizes, strict=True)])

    losses = step()
    gradients = [w.grad.clone() for w in stack.weights.values() if w.grad is not None]
    after = step()
    buffers = [stack.fixed[name] for name, _ in recipes[0].model.named_buffers()]
    return Stepped(
        losses=losses,
        gradients=[g[k] for k in of_each for g in gradients],
        after=after,
        buffers=[b[k] for k in of_each for b in buffers],
    )
