"""Top-1 accuracy, overall, per class and per domain; which classes are taken for which."""

import torch
from torch import Tensor, nn

from fl.data.shard import Shard
from fl.server import Evaluation
from fl.targets import Targets


@torch.no_grad()
def answers(model: nn.Module, images: Tensor, batch_size: int = 512) -> Tensor:
    """The class that ``model`` predicts for each image, (N,) int64, on its device.

    Args:
        model: images (B, C, H, W) to logits (B, classes); runs in eval mode, and is left in the
            mode it was in.
        images: (N, C, H, W) float32 in [0, 1], on the model's device.
        batch_size: samples per forward pass.

    Raises:
        FloatingPointError: an answer is NaN, which is no class.
    """
    parts = _asked(model, images, batch_size)
    if not parts:
        return torch.empty(0, dtype=torch.int64, device=images.device)
    return torch.cat([part.argmax(1) for part in parts])


@torch.no_grad()
def scores(model: nn.Module, test: Shard, targets: Targets, batch_size: int = 512) -> Tensor:
    """The score of each test sample times what it counts, (N,), by the targets; as :func:`answers`
    does it."""
    device = next(model.parameters()).device
    parts = _asked(model, test.images.to(device), batch_size)
    wanted = test.wanted.to(device).split(batch_size)
    pairs = zip(parts, wanted, strict=False)
    found = [targets.scores(part.float(), own) * targets.counted(own) for part, own in pairs]
    return torch.cat(found) if found else torch.empty(0, device=device)


def _asked(model: nn.Module, samples: Tensor, batch_size: int) -> list[Tensor]:
    """The model's answers by batch, in eval mode; it is left in the mode it was in."""
    was_training = model.training
    model.eval()
    parts = [model(part) for part in samples.split(batch_size) if len(part)]
    model.train(was_training)
    nan = [part.flatten(1).isnan().any(1) for part in parts]
    if nobody := int(torch.cat(nan).sum()) if nan else 0:
        raise FloatingPointError(f"the model answers NaN for {nobody} of {len(samples)} samples")
    return parts


def accuracies(hits: list[float], totals: list[int], num_classes: int) -> Evaluation:
    """Overall, per class and per domain, from the right answers and the samples of each group; per
    class only where there are several.

    Groups are the classes; with domains, the classes of the first domain, then of the next.
    """
    right = torch.tensor(hits).view(-1, num_classes)
    samples = torch.tensor(totals).view(-1, num_classes)
    return Evaluation(
        accuracy=sum(hits) / sum(totals),
        per_class=_shares(right.sum(0), samples.sum(0)) if num_classes > 1 else (),
        per_domain=_shares(right.sum(1), samples.sum(1)) if len(right) > 1 else (),
    )


def confusion(predicted: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """How many samples of each class (row) were taken for each class (column), (classes, classes).

    Args:
        predicted: classes from 0 to ``num_classes`` - 1, int64 (N,), as :func:`answers` gives them.
        labels: the true ones, int64 (N,), on the same device.
        num_classes: of the data set.
    """
    pairs = labels * num_classes + predicted
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def _shares(hits: Tensor, totals: Tensor) -> tuple[float | None, ...]:
    pairs = zip(hits.tolist(), totals.tolist(), strict=True)
    return tuple(h / n if n else None for h, n in pairs)
