"""What a classifier's clients minimise, whether a loss of a user's is one, and distillation."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.errors import UserError, reason_of
from fl.federation import Batch, RunSpec
from fl.models.common import forwards_replaced
from fl.models.registry import copied
from fl.seeding import seeded

Losses = Callable[[nn.Module, Batch], Tensor]


def losses_of(run_spec: RunSpec, model: nn.Module) -> Losses:
    """The loss of each sample, (B,): the model's own if it has one, else that of the targets, which
    is cross-entropy of classes. One number for a batch counts as each sample's."""
    if not has_own_loss(model):
        if run_spec.targets is None:
            return cross_entropies
        wanted = run_spec.targets.losses
        return lambda model, batch: wanted(model(batch["images"]), batch["labels"])

    def own(model: Any, batch: Batch) -> Tensor:
        samples, targets = batch["images"], batch["labels"]
        if hasattr(model, "training_loss"):
            several = run_spec.inputs.parts
            given = run_spec.inputs.one_by_one(samples) if several else samples
            found = model.training_loss(given, targets)
        else:
            if isinstance(model.own_loss, nn.Module):
                model.own_loss.to(targets.device)  # weights of classes, say
            found = model.own_loss(model(samples), targets)
        if not isinstance(found, Tensor) or found.shape not in ((), targets.shape[:1]):
            form = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"the loss gives {form} for {len(targets)} samples: expected a tensor with one "
                "number, or one for each"
            )
        return found.expand(len(targets))

    return own


def has_own_loss(model: nn.Module) -> bool:
    """Whether the model says itself what clients minimise: by a method ``training_loss``, or by the
    function that it was registered with."""
    return hasattr(model, "training_loss") or "own_loss" in vars(model)


def check_own_loss(model: nn.Module, run_spec: RunSpec, *, apart: bool = False) -> bool:
    """Whether there is one, which is then tried on four samples.

    Args:
        model: a registered one, as clients start from it.
        run_spec: of the run.
        apart: whether a batch's samples are passed apart from each other.

    Raises:
        UserError: it fails, or is not what it is meant to be.
    """
    if not has_own_loss(model):
        return False
    name = vars(model)["built_as"].model
    if hasattr(model, "training_loss") and "own_loss" in vars(model):
        raise UserError(f"{name} has a method training_loss and was also given a loss: use one")
    images = run_spec.inputs.example(4)
    batch = {"images": images, "labels": example_targets(run_spec, 4)}
    untouched = {column: tensor.clone() for column, tensor in batch.items()}
    losses = losses_of(run_spec, model)
    try:
        found = _asked_twice(model, losses, batch)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"the loss of {name} fails: {type(error).__name__}: {reason_of(error)}"
        ) from None
    if not all(torch.equal(tensor, untouched[column]) for column, tensor in batch.items()):
        raise UserError(f"the loss of {name} changes samples or labels in place")
    if not found[0].requires_grad:
        raise UserError(f"the loss of {name} depends on no weight of the model")
    if not torch.equal(*found):
        raise UserError(
            f"the loss of {name} gives another number when it is called again: it keeps state "
            "between calls, which clients in one process would share; it may depend only on its "
            "arguments and on the global random generators"
        )
    if apart and not _is_a_mean(model, losses, run_spec):
        raise UserError(
            f"the loss of {name} is not the mean of its samples' losses (class weights do this): "
            "leave out micro_batch and dp.epsilon, which split a batch"
        )
    if (own := run_spec.targets) and own.kind == "values" and _mixes_up(model, losses, batch):
        raise UserError(
            f"the loss of {name} does not change when targets are permuted: targets and outputs "
            f"have shape (B, {run_spec.outputs}), so leave squeeze() out"
        )
    return True


def _mixes_up(model: nn.Module, losses: Losses, batch: Batch) -> bool:
    """Whether the loss does not depend on which target is which sample's."""
    turned = {**batch, "labels": batch["labels"].flip(0)}
    with torch.no_grad(), seeded(0, "loss"):
        found, other = (losses(copied(model).train(), part).mean() for part in (batch, turned))
    return bool(torch.isclose(found, other))


def _asked_twice(model: nn.Module, losses: Losses, batch: Batch) -> list[Tensor]:
    """The loss of two copies of the model, which have the loss itself in common."""
    found = []
    for twin in (copied(model), copied(model)):
        if "own_loss" in vars(model):
            vars(twin)["own_loss"] = vars(model)["own_loss"]
        with torch.enable_grad(), seeded(0, "loss"):
            found.append(losses(twin.train(), batch).mean())
    return found


def _is_a_mean(model: nn.Module, losses: Losses, run_spec: RunSpec) -> bool:
    """Whether the loss of a batch is the mean of the losses of its samples alone."""
    try:
        with seeded(0, "loss"):
            whole, alone = tried_losses(model, losses, run_spec)
            return bool(torch.isclose(torch.stack([*alone]).mean(), whole, rtol=1e-4))
    except Exception:  # it needs several
        return False


def tried_losses(
    model: nn.Module, losses: Losses, run_spec: RunSpec
) -> tuple[Tensor, Iterator[Tensor]]:
    """The loss of a batch that has each class, label or token, and of each of its samples alone.

    Random answers take the place of the model's, which may take long.
    """
    stream = torch.Generator().manual_seed(0)
    places = math.prod(run_spec.targets.shape) if run_spec.targets else 1
    count = max(8, -(-run_spec.outputs // places))
    example, image = example_targets(run_spec, count), run_spec.inputs.draw(1, stream)
    order = torch.randperm(example.numel(), generator=stream)  # no two rows are alike
    labels, twin = example.flatten()[order].view_as(example), copied(model).eval()

    def loss(rows: Tensor) -> Tensor:
        images = image.expand(len(rows), *image.shape[1:])
        with torch.no_grad(), forwards_replaced({twin: lambda *inputs: answers[rows]}):
            return losses(twin, {"images": images, "labels": labels[rows]}).mean()

    with torch.no_grad():
        answers = torch.randn(count, *twin(image).shape[1:], generator=stream)
    return loss(torch.arange(count)), map(loss, torch.arange(count).split(1))


def example_targets(run_spec: RunSpec, count: int) -> Tensor:
    """So many targets, of each kind that there is."""
    if run_spec.targets is not None:
        return run_spec.targets.example(count)
    return torch.arange(count) % run_spec.num_classes


def cross_entropies(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each sample of the batch, (B,)."""
    return F.cross_entropy(model(batch["images"]), batch["labels"], reduction="none")


# Distillation: soft labels of a frozen teacher, and the distance to them.


@torch.no_grad()
def logits_of(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """The model's logits of each image in eval mode, (N, classes), in the images' order.

    Args:
        model: on its device; it is left in eval mode.
        images: (N, C, H, W), on any device.
        batch_size: images per forward pass.
    """
    model.eval()
    device = next(model.parameters()).device
    return torch.cat([model(part.to(device)) for part in images.split(batch_size)])


def divergences(
    teacher: Tensor, student: Tensor, temperature: float = 1.0, weights: Tensor | None = None
) -> Tensor:
    """tau^2 * sum_c w_c t_c log(t_c / s_c) of each row, (B,), for the softmax outputs t and s.

    tau squared, so that gradients do not shrink as the temperature rises.

    Args:
        teacher, student: logits, (B, classes).
        temperature: tau, by which logits are divided.
        weights: w, (B, classes) or (classes,); all 1 without it, which is the Kullback-Leibler
            divergence.
    """
    t, s = ((logits / temperature).log_softmax(1) for logits in (teacher, student))
    terms = t.exp() * (t - s)
    return temperature**2 * (terms if weights is None else weights * terms).sum(1)
