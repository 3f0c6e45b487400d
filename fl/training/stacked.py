"""Many clients' training as one computation: the same training as one by one.

A cohort is clients of one model and one training record. Each step takes the next batch of every
client that still has one, in its own order and with its own noise; a client that has fewer samples,
or a loss that no longer falls, is done earlier, and its weights no longer change. A client's result
does not depend on its cohort, bit for bit: its rows meet its own weights in operations of its own
size, and everything else is done to each row alike. Only against training without a cohort do sums
round differently, in the last bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from fl.federation import Batch, TaskOutput
from fl.models import copied
from fl.seeding import streams_restored
from fl.training.loop import Step, minimise
from fl.training.per_client import Turns, cohort_model, dropout_in
from fl.training.recipe import MeanLoss, Recipe, batches, optimizer_of


def train(recipes: Sequence[Recipe], clients: Sequence[int] = ()) -> list[TaskOutput]:
    """Trains the clients' models together; returns what each uploads, in the same order.

    The recipes have the same model (except for its weights), losses and optimiser. None has a
    :func:`conflict`. Those with a further stage go through it together, when all have ended.
    With the clients' ids, their progress is reported (:mod:`fl.training.progress`).
    """
    ids: Sequence[int | None] = clients or [None] * len(recipes)
    for recipe in recipes:
        recipe.freeze_others()
    turns = Turns()
    model = cohort_model([recipe.model for recipe in recipes], turns)
    parameters = [recipe.parameters for recipe in recipes]
    optimizer = optimizer_of(recipes)
    mean_losses = [MeanLoss() for _ in recipes]
    feeds = [batches(*own) for own in zip(recipes, mean_losses, ids, strict=True)]

    def steps() -> Iterator[Step]:
        while step := {k: b for k, feed in enumerate(feeds) if (b := next(feed, None))}:
            losses = _losses(recipes[0], model, turns, step)
            shares = _weights(tuple(turns.rows), recipes[0].reduction, losses.device, losses.dtype)
            # A dot product, since backward(gradient) would make torch import sympy for its shape.
            yield Step(losses.dot(shares), turns.clients)
            for k, own in zip(turns.clients, losses.split(list(turns.rows)), strict=True):
                mean_losses[k].add(own)

    minimise(steps(), parameters, optimizer)
    further = {k: recipe.then() for k, recipe in enumerate(recipes) if recipe.then is not None}
    theirs = [clients[k] for k in further] if clients else ()
    outputs = train(list(further.values()), theirs) if further else ()
    later = dict(zip(further, outputs, strict=True))
    return [
        later.get(k) or loss.output(recipe)
        for k, (recipe, loss) in enumerate(zip(recipes, mean_losses, strict=True))
    ]


def conflict(probe: Recipe) -> str | None:
    """Why this training cannot be run for many clients at once; None if it can.

    Two clients of different weights take a step as one and each alone: losses, gradients, buffers
    and the losses of the next step must agree.

    ``probe`` is a recipe made for this check alone: its first batch is used up.
    """
    if dropout := dropout_in(probe.model):
        return f"{dropout}, which draws from one stream for all"
    batch = next(next(probe.epochs))
    # Stands for another client's batch: the same samples in reverse, and fewer of them.
    size = len(next(iter(batch.values())))
    step = {0: batch, 1: {n: t.flip(0)[: max(2, size // 2)] for n, t in batch.items()}}
    try:
        with torch.enable_grad(), streams_restored():
            alone = [_one_step([recipe], {0: step[k]}) for k, recipe in enumerate(_two(probe))]
            if alone[0].losses.shape != (size,):
                shape = tuple(alone[0].losses.shape)
                return f"its losses have the shape {shape}, not one for each sample"
            together = _one_step(_two(probe), step)
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


@dataclass
class _Stepped:
    """What a step of some clients was, for each in turn."""

    losses: Tensor
    gradients: list[Tensor]
    after: Tensor
    """The losses of the same batches after it, (B,)."""
    buffers: list[Tensor]


def _two(probe: Recipe) -> list[Recipe]:
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


def _one_step(recipes: Sequence[Recipe], step: dict[int, Batch]) -> _Stepped:
    """One client steps as it does one by one, several as a cohort."""
    turns = Turns()
    models = [recipe.model for recipe in recipes]
    model = models[0] if len(models) == 1 else cohort_model(models, turns)
    parameters = [recipe.parameters for recipe in recipes]
    losses = _losses(recipes[0], model, turns, step)
    first = losses.detach().clone()
    if losses.dim() == 1:
        shares = _weights(tuple(turns.rows), recipes[0].reduction, losses.device, losses.dtype)
        loss = losses.dot(shares)
    else:
        loss = losses.sum()
    minimise([Step(loss, turns.clients)], parameters, optimizer_of(recipes))
    zeros = ((p, torch.zeros_like(p)) for own in parameters for p in own)
    gradients = [zero if p.grad is None else p.grad for p, zero in zeros]
    with torch.no_grad():
        again = _losses(recipes[0], model, turns, step)
    return _Stepped(first, gradients, again, [b for m in models for b in m.buffers()])


def _all_close(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Against the largest value of all: what is small beside it may be rounding alone."""
    largest = max((float(t.abs().max()) for t in others if t.numel()), default=0.0)
    return all(_close(*pair, 1e-3, largest) for pair in zip(ones, others, strict=True))


def _close(one: Tensor, other: Tensor, rtol: float = 1e-4, scale: float = 1.0) -> bool:
    atol = 1e-5 * max(scale, 1e-3)
    return one.shape == other.shape and torch.allclose(
        one.double(), other.double(), rtol=rtol, atol=atol, equal_nan=True
    )


def _losses(recipe: Recipe, model: nn.Module, turns: Turns, step: dict[int, Batch]) -> Tensor:
    batches = list(step.values())
    turns.clients = list(step)
    turns.rows = [len(next(iter(batch.values()))) for batch in batches]
    if len(batches) == 1:
        return recipe.losses(model, batches[0])
    return recipe.losses(model, {n: torch.cat([b[n] for b in batches]) for n in batches[0]})


@lru_cache(maxsize=64)
def _weights(
    rows: tuple[int, ...], reduction: str, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """The weight of each sample's loss in its own client's loss."""
    shares = [1 / n if reduction == "mean" else 1.0 for n in rows]
    return torch.cat([torch.full((n,), s) for n, s in zip(rows, shares, strict=True)]).to(
        device, dtype
    )
