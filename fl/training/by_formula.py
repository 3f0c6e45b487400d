"""Training of one client whose recipe has its gradient as a formula: without autograd.

A small client's step is a few products of matrices, and autograd, the passes that it makes over
activations, and a kernel call for each parameter take longer than these. Here a step is the formula
and one call of the optimiser, on one flat buffer for all weights and one for their gradients.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fl.federation import TaskOutput
from fl.training.loop import Step, minimise
from fl.training.recipe import MeanLoss, Recipe, batches


def train(recipe: Recipe, client: int | None = None) -> TaskOutput:
    """Trains one client; returns what it uploads. With its id, its progress is told."""
    assert recipe.gradient is not None
    gradient, mean_loss = recipe.gradient, MeanLoss()
    optimizer = recipe.optimizer.for_cohort([[flattened(recipe.model)]])

    def steps() -> Iterator[Step]:
        for batch in batches(recipe, mean_loss, client):
            losses = gradient(batch)
            yield Step(losses.sum())
            mean_loss.add(losses)

    with torch.no_grad():
        # The loop is told of no parameters, as it would clear their gradients before the step.
        minimise(steps(), [[]], optimizer)
    return mean_loss.output(recipe)


def flattened(model: nn.Module) -> Tensor:
    """Moves all weights into one tensor, and all gradients into its ``grad``; each parameter, and
    its ``grad``, is a view of these from now on."""
    parameters = list(model.parameters())
    weights = torch.cat([p.detach().flatten() for p in parameters])
    weights.grad = torch.empty_like(weights)  # a formula writes all of it
    sizes = [p.numel() for p in parameters]
    parts = zip(parameters, weights.split(sizes), weights.grad.split(sizes), strict=True)
    for parameter, own, gradient in parts:
        parameter.data, parameter.grad = own.view_as(parameter), gradient.view_as(parameter)
    return weights
