"""One client's training by steps that a GPU replays, for models that fill it by themselves.

The same training as :func:`fl.training.recipe.one_by_one`, but that dropout's masks follow from the
sample (:mod:`fl.training.masks`): a replayed step cannot draw from torch's stream for one client.
"""

from operator import length_hint

from torch import Tensor, nn

from fl.federation import Batch, TaskInput, TaskOutput
from fl.models.shapes import AnyDropout
from fl.seeding import in_round
from fl.training import captured
from fl.training.captured import DeviceSteps, is_ours
from fl.training.epochs import Epochs, Planned
from fl.training.masks import key_of_all, sample_dropout
from fl.training.optimizers import Paced, innermost
from fl.training.progress import report
from fl.training.recipe import MeanLoss, Recipe, Step, minimise, one_by_one, optimizer_of
from fl.training.reduced import reduced


def train(inputs: TaskInput, recipe: Recipe) -> TaskOutput:
    """Trains one client by itself, by replayed steps where that is possible."""
    plan = planned(recipe)
    if plan is None or not captured.can_capture(inputs.device):
        return one_by_one(inputs, recipe)
    recipe.freeze_others()
    mean_loss, mean = MeanLoss(), recipe.reduction == "mean"
    epochs = length_hint(recipe.epochs)
    stream = f"{in_round('local/dropout', inputs.round)}/{inputs.client.id}"
    with (
        reduced(recipe.model, recipe.optimizer, when=recipe.anchor is None) as own,
        sample_dropout(recipe.model) as masks,
    ):
        optimizer = optimizer_of([recipe])

        def step(batch: Batch) -> Tensor:
            masks.start_step(batch["key"])
            losses = recipe.losses(recipe.model, batch)
            loss = losses.mean() if mean else losses.sum()
            minimise([Step(loss)], [recipe.parameters], optimizer, own.scale_gradients)
            return loss.detach()

        steps = DeviceSteps(plan.columns, plan.batch_size, step, epochs)
        for epoch in range(1, epochs + 1):
            mean_loss.begin_epoch()
            batches = [rows for rows, _ in plan.epoch(inputs.device)]
            common = key_of_all(inputs.run_spec.seed, stream, epoch)
            for rows, loss in zip(batches, steps.train(batches, common), strict=True):
                mean_loss.add_sum(loss * len(rows) if mean else loss, len(rows))
            over = mean_loss.end_epoch(recipe.patience)
            report(inputs.client.id, epoch, epochs, mean_loss.reader())
            if over:
                break
    if recipe.then is not None:
        return train(inputs, recipe.then())
    return mean_loss.output(recipe)


def planned(recipe: Recipe) -> Planned | None:
    """The client's batches, if a step of this training may be replayed; None if not."""
    drops = [layer for layer in recipe.model.modules() if isinstance(layer, AnyDropout)]
    paced = isinstance(innermost(recipe.optimizer), Paced)
    if paced or recipe.held_out or recipe.micro_batch or not is_ours(recipe):
        return None
    if not all(isinstance(layer, nn.Dropout) for layer in drops):
        return None
    plan = recipe.epochs.planned if isinstance(recipe.epochs, Epochs) else None
    return None if plan is None or plan.latent else plan
