"""Many clients' training as one computation: the same training as one by one.

A cohort is clients of one model and one training record. Each step takes the next batch of every
client that still has one, in its own order and with its own noise; a client that has fewer samples,
or a loss that no longer falls, is done earlier, and its weights no longer change. A client's result
does not depend on its cohort, bit for bit: its rows meet its own weights in operations of its own
size, and everything else is done to each row alike. Only against training without a cohort do sums
round differently, in the last bits.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from fl.federation import Batch, TaskOutput
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
            shares = _weights(tuple(turns.rows), recipes[0].reduction, losses.device)
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

    ``probe`` is a recipe made for this check alone: its first batch is used up.
    """
    if dropout := dropout_in(probe.model):
        return f"{dropout}, which draws from one stream for all"
    batch = next(next(probe.epochs))
    # Stands for another client's batch: the same samples in reverse, and fewer of them.
    size = len(next(iter(batch.values())))
    other = {n: t.flip(0)[: max(2, size // 2)] for n, t in batch.items()}
    turns = Turns()
    with torch.no_grad(), streams_restored():
        alone = [probe.losses(probe.model, b) for b in (batch, other)]
        if alone[0].shape != (size,):
            return f"its losses have the shape {tuple(alone[0].shape)}, not one for each sample"
        try:
            model = cohort_model([probe.model, probe.model], turns)
            together = _losses(probe, model, turns, {0: batch, 1: other})
        except Exception as error:  # whatever a model of the user's own needs that a cohort lacks
            return f"as one model of several clients it raises {type(error).__name__}: {error}"
    if together.shape != torch.cat(alone).shape:
        return f"its losses together have the shape {tuple(together.shape)}"
    if not torch.allclose(torch.cat(alone), together, rtol=1e-4, atol=1e-5):
        return "a sample's loss depends on the other samples of its batch"
    return None


def _losses(recipe: Recipe, model: nn.Module, turns: Turns, step: dict[int, Batch]) -> Tensor:
    batches = list(step.values())
    turns.clients = list(step)
    turns.rows = [len(next(iter(batch.values()))) for batch in batches]
    if len(batches) == 1:
        return recipe.losses(model, batches[0])
    return recipe.losses(model, {n: torch.cat([b[n] for b in batches]) for n in batches[0]})


@lru_cache(maxsize=64)
def _weights(rows: tuple[int, ...], reduction: str, device: torch.device) -> Tensor:
    """The weight of each sample's loss in its own client's loss."""
    shares = [1 / n if reduction == "mean" else 1.0 for n in rows]
    return torch.cat([torch.full((n,), s) for n, s in zip(rows, shares, strict=True)]).to(device)
