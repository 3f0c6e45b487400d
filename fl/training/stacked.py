"""Many clients' training as one computation: the same training as one by one.

A cohort is clients of one model and one training record. Each step takes the next batch of every
client that still has one, in its own order and with its own noise; a client that has fewer samples,
or a loss that no longer falls, is done earlier, and its weights no longer change. A client's result
does not depend on its cohort, bit for bit: its rows meet its own weights in operations of its own
size, and everything else is done to each row alike. Only against training without a cohort do sums
round differently, in the last bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fl.federation import Batch, TaskOutput
from fl.models.common import AnyDropout
from fl.models.registry import copied, holds_own
from fl.seeding import streams_restored
from fl.torch_internals import onednn_product, shell
from fl.training.recipe import MeanLoss, Recipe, Step, batches, minimise, optimizer_of, own_steps

# Matrix products of one client's rows on a CPU, by the faster library, independent of alignment.
#
# Rows lie in a batch beside other clients' rows, so the result's bits must not depend on where in
# memory they are. With MKL they do not if memory is aligned to 64 bytes, as all is that torch
# allocates; with oneDNN, which packs its operands, they never do. MKL is faster than oneDNN on
# Intel's processors, by a quarter, and slower on AMD's, by half (docs/dev/log.md).

CPUINFO = Path("/proc/cpuinfo")
ALIGNED_BYTES = 64


def available(x: Tensor) -> bool:
    """Whether there are such products for rows like these."""
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
    return on_cpu and (uses_mkl() or torch.backends.mkldnn.is_available())


def product(a: Tensor, b: Tensor, *, add: Tensor | None = None, out: Tensor) -> None:
    """Writes ``a b + add`` to ``out``: a (n, k), b (k, m), add (m,), out (n, m)."""
    if not uses_mkl():
        out.copy_(onednn_product(a, b, add))
    elif not _is_aligned(out):
        aligned = torch.empty_like(out)
        product(a, b, add=add, out=aligned)
        out.copy_(aligned)
    else:
        a, b = (t if _is_aligned(t) else t.clone() for t in (a, b))
        if add is None:
            torch.mm(a, b, out=out)
        else:
            torch.addmm(add, a, b, out=out)


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % ALIGNED_BYTES == 0


@lru_cache
def uses_mkl() -> bool:
    """Whether products go to MKL: on Intel's processors, where it is the faster one."""
    try:
        return torch.backends.mkl.is_available() and "GenuineIntel" in CPUINFO.read_text()
    except OSError:  # no Linux
        return False


# A cohort's model: all clients' samples in one batch, each client with its own weights.
#
# The rows of a batch are the clients' samples, one client's after another's. What is done to each
# row alike (an activation, a loss) is done to all at once; a layer with weights or a state runs
# once per client on that client's rows. On a CPU this is faster than stacked weights in one
# batched product (docs/dev/log.md): a product of this size uses a core fully by itself, and a
# client's weights stay in cache.


class Turns:
    """The clients in a batch, by position, and how many rows each has."""

    clients: Sequence[int] = ()
    rows: Sequence[int] = ()


class PerClient(nn.Module):
    """One layer of every client, each for its own rows."""

    def __init__(self, layers: Sequence[nn.Module], turns: Turns) -> None:
        super().__init__()
        # A plain list, as the weights are parameters of the clients' models, not of this one.
        self._layers = list(layers)
        self.is_linear = all(type(layer) is nn.Linear for layer in layers)
        self._turns = turns

    def forward(self, x: Tensor) -> Tensor:
        """Rows (N, ...) in, rows (N, ...) out."""
        turns = self._turns
        layers = [self._layers[k] for k in turns.clients]
        if self.is_linear and x.dim() == 2 and available(x):
            weights = [layer.weight for layer in layers]
            biases = [layer.bias for layer in layers if layer.bias is not None]
            return _Linear.apply(x, turns.rows, *weights, *biases)
        parts = zip(layers, _parts(x, turns.rows), strict=True)
        return _joined([layer(part) for layer, part in parts])


def cohort_model(models: Sequence[nn.Module], turns: Turns) -> nn.Module:
    """One model whose forward is all of theirs, over the rows that ``turns`` describes.

    ``models`` have the same layers. Their weights are shared, not copied: training it trains them.
    """
    first = models[0]
    if _is_own(first):
        return PerClient(models, turns)
    merged = shell(first)
    # Under all its names, if a layer has several.
    paths = [path for path, _ in first.named_modules(remove_duplicate=False)]
    for name in [path for path in paths if path and "." not in path]:
        setattr(merged, name, cohort_model([m.get_submodule(name) for m in models], turns))
    return merged


def dropout_in(model: nn.Module) -> str | None:
    """Name of the model's first active dropout, whose masks come from torch's global stream."""
    for name, layer in model.named_modules():
        if isinstance(layer, AnyDropout) and layer.p > 0:
            return f"{name} is a {type(layer).__name__}"
    return None


ALIKE = (
    *(nn.Flatten, nn.Unflatten, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.Tanh),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample),
)
"""Layers whose output for a row does not depend, to the last bit, on the row's place in the batch.
Others, such as the sigmoid, round differently in the last few elements of a tensor."""


def _is_own(layer: nn.Module) -> bool:
    """Whether the layer runs for each client by itself."""
    weights, buffers = layer.parameters(recurse=False), layer.buffers(recurse=False)
    if [*weights, *buffers]:
        return True
    is_leaf = next(layer.children(), None) is None
    return is_leaf and not isinstance(layer, ALIKE)


def _parts(x: Tensor, rows: Sequence[int]) -> Sequence[Tensor]:
    return [x] if len(rows) == 1 else x.split(list(rows))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _Linear(torch.autograd.Function):
    """nn.Linear of every client on its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Sequence[int], *parameters: Tensor) -> Tensor:
        weights, biases = parameters[: len(rows)], parameters[len(rows) :] or [None] * len(rows)
        ctx.rows, ctx.has_biases = rows, len(parameters) > len(rows)
        ctx.save_for_backward(x, *weights)
        out = x.new_empty(len(x), len(weights[0]))
        parts = zip(_parts(x, rows), weights, biases, _parts(out, rows), strict=True)
        for own, weight, bias, own_out in parts:
            product(own, weight.t(), add=bias, out=own_out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        grads = _parts(grad.contiguous(), ctx.rows)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.empty_like(x)
            for g, w, own in zip(grads, weights, _parts(of_x, ctx.rows), strict=True):
                product(g, w, out=own)
        if not any(ctx.needs_input_grad[2:]):  # frozen weights
            return of_x, *[None] * (len(ctx.needs_input_grad) - 1)
        of_weights = [torch.empty_like(w) for w in weights]
        for g, own, of_weight in zip(grads, _parts(x, ctx.rows), of_weights, strict=True):
            product(g.t(), own, out=of_weight)
        of_biases = [g.sum(0) for g in grads] if ctx.has_biases else []
        return of_x, None, *of_weights, *of_biases


def train(recipes: Sequence[Recipe]) -> list[TaskOutput]:
    """Trains the clients' models together; returns what each uploads, in the same order.

    The recipes have the same model (except for its weights), losses and optimiser. None has a
    :func:`conflict`.
    """
    for recipe in recipes:
        recipe.freeze_others()
    turns = Turns()
    model = cohort_model([recipe.model for recipe in recipes], turns)
    mean_losses = [MeanLoss(recipe) for recipe in recipes]
    feeds = [batches(*own) for own in zip(recipes, mean_losses, strict=True)]

    def steps() -> Iterator[Step]:
        while step := {k: b for k, feed in enumerate(feeds) if (b := next(feed, None))}:
            losses = _losses(recipes[0], model, turns, step)
            yield Step(_sum(losses, recipes[0], turns), turns.clients)
            for k, own in zip(turns.clients, losses.split(list(turns.rows)), strict=True):
                mean_losses[k].add(own)

    minimise(steps(), [recipe.parameters for recipe in recipes], optimizer_of(recipes))
    return [mean_loss.output() for mean_loss in mean_losses]


# Whether clients train together as each alone, found out by one step of two of them.


def conflict(probe: Recipe) -> str | None:
    """Why this training cannot be run for many clients at once; None if it can.

    ``probe`` is a recipe made for this check alone: its first batch is used up.
    """
    if reason := own_steps(probe):
        return reason
    if dropout := dropout_in(probe.model):
        return f"{dropout}, which draws from one stream for all"
    if holds_own(probe.model) and not _is_straight(probe.model):
        return "its forward may decide by its samples' values"
    return difference(probe, _one_step)


def _is_straight(model: nn.Module) -> bool:
    """Whether it does the same to all samples, which torch's tracer finds out; a loss of its own
    may do otherwise."""
    if hasattr(model, "training_loss") or "own_loss" in vars(model):
        return False
    try:
        torch.fx.symbolic_trace(copied(model))
    except Exception:  # of many kinds, in the user's code
        return False
    return True


@dataclass
class Stepped:
    """What a step of some clients was, for each in turn."""

    losses: Tensor
    gradients: list[Tensor]
    after: Tensor
    """The losses of the same batches after it, (B,)."""
    buffers: list[Tensor]


def difference(
    probe: Recipe, as_one: Callable[[Sequence[Recipe], Sequence[Batch]], Stepped]
) -> str | None:
    """How a step of two clients of different weights as one differs from that of each alone: in
    losses, gradients, buffers or the losses of the next step; None if in nothing but rounding.

    Args:
        probe: a recipe made for this check alone: its first batch is used up.
        as_one: takes the step of clients, each with its own batch.
    """
    batch = next(next(probe.epochs))
    # Stands for another client's batch: the same samples in reverse, and fewer of them.
    size = len(next(iter(batch.values())))
    step = [batch, {n: t.flip(0)[: max(2, size // 2)] for n, t in batch.items()}]
    try:
        with torch.enable_grad(), streams_restored():
            alone = [_one_step([r], [b]) for r, b in zip(_two_clients(probe), step, strict=True)]
            if alone[0].losses.shape != (size,):
                shape = tuple(alone[0].losses.shape)
                return f"its losses have the shape {shape}, not one for each sample"
            together = as_one(_two_clients(probe), step)
    except Exception as error:  # whatever a model of the user's own needs that a cohort lacks
        return f"as one model of several clients it raises {type(error).__name__}: {error}"
    losses, after = (torch.cat(t) for t in zip(*((s.losses, s.after) for s in alone), strict=True))
    if together.losses.shape != losses.shape:
        return f"its losses together have the shape {tuple(together.losses.shape)}"
    if not _close(together.losses, losses):
        return "a sample's loss depends on the other samples of its batch"
    if not _all_close(together.gradients, [g for own in alone for g in own.gradients]):
        return "its gradients are others together than alone"
    buffers = [b for own in alone for b in own.buffers]
    if not _all_close([together.after, *together.buffers], [after, *buffers]):
        return "after a step its losses or buffers are others together than alone"
    return None


def _two_clients(probe: Recipe) -> list[Recipe]:
    """The recipe for two clients with models of their own, of which one has other weights."""
    positions = {id(p): i for i, p in enumerate(probe.model.parameters())}
    recipes = []
    for k in range(2):
        model = copied(probe.model)
        own = list(model.parameters())
        stream = torch.Generator().manual_seed(0)
        for parameter in own if k else ():
            noise = torch.randn(parameter.shape, generator=stream).to(parameter)
            spread = float(parameter.detach().std(correction=0))
            parameter.data.add_(noise, alpha=0.1 * spread + 1e-3)
        trained = probe.trained and [own[positions[id(p)]] for p in probe.trained]
        recipes.append(replace(probe, model=model, trained=trained))
        recipes[-1].freeze_others()
    return recipes


def _one_step(recipes: Sequence[Recipe], batches: Sequence[Batch]) -> Stepped:
    """One client steps as it does one by one, several as a cohort."""
    turns, step = Turns(), dict(enumerate(batches))
    models = [recipe.model for recipe in recipes]
    model = models[0] if len(models) == 1 else cohort_model(models, turns)
    parameters = [recipe.parameters for recipe in recipes]
    losses = _losses(recipes[0], model, turns, step)
    first = losses.detach().clone()
    loss = _sum(losses, recipes[0], turns) if losses.dim() == 1 else losses.sum()
    minimise([Step(loss, turns.clients)], parameters, optimizer_of(recipes))
    zeros = ((p, torch.zeros_like(p)) for own in parameters for p in own)
    gradients = [zero if p.grad is None else p.grad for p, zero in zeros]
    with torch.no_grad():
        again = _losses(recipes[0], model, turns, step)
    return Stepped(first, gradients, again, [b for m in models for b in m.buffers()])


def _all_close(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Against the largest value of all: what is small beside it may be rounding alone."""
    largest = max((float(_numbers(t).abs().max()) for t in others if t.numel()), default=0.0)
    return all(_close(*pair, 1e-3, largest) for pair in zip(ones, others, strict=True))


def _close(one: Tensor, other: Tensor, rtol: float = 1e-4, scale: float = 1.0) -> bool:
    """Whether two tensors are the same but for rounding, beside values as large as ``scale``."""
    atol = 1e-5 * max(scale, 1e-3)
    return one.shape == other.shape and torch.allclose(
        _numbers(one), _numbers(other), rtol=rtol, atol=atol, equal_nan=True
    )


def _numbers(tensor: Tensor) -> Tensor:
    """Real numbers; a buffer may be of truth values, or complex."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor.double()


def _losses(recipe: Recipe, model: nn.Module, turns: Turns, step: dict[int, Batch]) -> Tensor:
    batches = list(step.values())
    turns.clients = list(step)
    turns.rows = [len(next(iter(batch.values()))) for batch in batches]
    if len(batches) == 1:
        return recipe.losses(model, batches[0])
    return recipe.losses(model, {n: torch.cat([b[n] for b in batches]) for n in batches[0]})


def _sum(losses: Tensor, recipe: Recipe, turns: Turns) -> Tensor:
    """The sum of the clients' losses, each of them its own samples' mean or sum."""
    shares = _weights(tuple(turns.rows), recipe.reduction, losses.device, losses.dtype)
    # A dot product, since backward(gradient) would make torch import sympy for its shape.
    return losses.dot(shares)


@lru_cache(maxsize=64)
def _weights(
    rows: tuple[int, ...], reduction: str, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """The weight of each sample's loss in its own client's loss."""
    shares = [1 / n if reduction == "mean" else 1.0 for n in rows]
    return torch.cat([torch.full((n,), s) for n, s in zip(rows, shares, strict=True)]).to(
        device, dtype
    )
