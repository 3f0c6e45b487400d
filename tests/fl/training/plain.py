"""The plain way to train a recipe, with torch's own optimisers: the oracle of the others."""

from torch import optim

from fl.federation import TaskInput, TaskOutput
from fl.seeding import seeded
from fl.training.optimizers import Adam, Proximal
from fl.training.recipe import Recipe


def train_plainly(inputs: TaskInput, recipe: Recipe) -> TaskOutput:
    parameters, how, mu = [*recipe.model.parameters()], recipe.optimizer, 0.0
    starts = [p.detach().clone() for p in parameters]
    if isinstance(how, Proximal):
        how, mu = how.optimizer, how.mu
    if isinstance(how, Adam):
        optimizer: optim.Optimizer = optim.Adam(parameters, lr=how.lr)
    else:
        optimizer = optim.SGD(parameters, lr=how.lr, momentum=how.momentum)
    with seeded(inputs.run_spec.seed, "local/dropout", inputs.client.id):
        means: list[float] = []
        for epoch in recipe.epochs:
            total, count = 0.0, 0
            for batch in epoch:
                losses = recipe.losses(recipe.model, batch)
                loss = losses.mean() if recipe.reduction == "mean" else losses.sum()
                for w, start in zip(parameters, starts, strict=True):
                    loss = loss + mu / 2 * (w - start).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total, count = total + float(losses.detach().sum()), count + len(losses)
            means.append(total / count)
            since_lowest = len(means) - 1 - means.index(min(means))
            if recipe.patience is not None and since_lowest >= recipe.patience:
                break
    return TaskOutput(
        tensors=recipe.upload(), stats={"train_loss": means[-1], "epochs": len(means)}
    )
