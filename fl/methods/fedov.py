"""FedOV (Diao et al., ICLR 2023): clients' classifiers know what they do not know, and vote.

Each client trains with a class more, the unknown one, whose samples it makes of its own images:
destroyed ones, and the same moved to where the classifier takes them for known. The server has the
classifiers vote with the probabilities of the known classes, so who does not know a sample has no
say. Nothing is trained at the server.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import Count, NotNegative
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Batch, RunSpec, TaskInput
from fl.fusion.server import Server
from fl.methods.method import Choice, LogUniform, Method, Spaces
from fl.methods.prototypes import LOCAL, PrototypesConfig, assign, prototypes
from fl.methods.uploads import load_classifier, untrained_classifier
from fl.models.common import AnyBatchNorm
from fl.models.ensemble import Ensemble, OpenVote
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.recipe import Recipe, epochs_of


@dataclass(frozen=True, kw_only=True)
class LocalFedOV(ClassifierConfig):
    """Local training of a FedOV client: a classifier's with a class more.

    The released code takes 200 epochs of Adam at 1e-3 with batches of 64.
    """

    second: NotNegative = 1.0
    """Weight of CE(unknown) of a sample's logits without its own class, which makes the unknown the
    second guess (the released code: 1)."""
    attack_steps: Count = 5
    """Steps that move an outlier to where it is taken for known (the released code: 5)."""
    attack_step: NotNegative = 0.002
    """Move of each pixel in such a step (the released code: 0.002)."""

    def check_further(self) -> None:
        """Refuses held out samples, of which no outliers are drawn."""
        if self.validation:
            raise UserError("fedov cannot use validation: leave it out")

    def recipe(self, inputs: TaskInput) -> Recipe:
        """With the unknown class; each step draws the numbers of its outliers."""
        inputs = replace(inputs, run_spec=self.answered(inputs.run_spec))
        model = received_classifier(inputs, self)
        recipe = classifier_recipe(inputs, self, model, losses=self.losses)
        return replace(recipe, epochs=epochs_of(inputs, self, model, latent=DRAWS))

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """CE(x, y) + CE(x without y, unknown) + CE(x', unknown) + CE(x'', unknown), (B,), with the
        outliers x' and x'' of :func:`destroyed` and :meth:`attacked`."""
        outliers = destroyed(batch["images"], batch["noise"])
        moved = self.attacked(model, outliers)
        logits, *others = answers(model, batch["images"], outliers, moved)
        labels, unknown = batch["labels"], torch.full_like(batch["labels"], logits.shape[1] - 1)
        without = logits - 10_000 * F.one_hot(labels, logits.shape[1])
        second = F.cross_entropy(without, unknown, reduction="none")
        loss = F.cross_entropy(logits, labels, reduction="none") + self.second * second
        for other in others:
            loss = loss + F.cross_entropy(other, unknown, reduction="none")
        return loss

    def attacked(self, model: nn.Module, outliers: Tensor) -> Tensor:
        """x + s sign(grad_x CE(x, unknown)), so many times, (B, C, H, W)."""
        trains = model.training
        model.train(trains and not _has_norm(model))  # outliers alone would be its statistics
        x = outliers
        for _ in range(self.attack_steps):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                certainty = model(x).log_softmax(1)[:, -1].sum()
                (gradient,) = torch.autograd.grad(certainty, x)
            x = x - self.attack_step * gradient.sign()
        model.train(trains)
        return x.detach()

    def check(self, run_spec: RunSpec) -> None:
        """Raises `UserError` if the classifier cannot take such samples, or they are no images."""
        assert run_spec.image_shape
        super().check(run_spec)

    def answered(self, run_spec: RunSpec) -> RunSpec:
        """With the unknown class, the last one."""
        return replace(run_spec, num_classes=run_spec.num_classes + 1)


def answers(model: nn.Module, *parts: Tensor) -> tuple[Tensor, ...]:
    """The logits of each part, (B, classes) of (B, C, H, W); in one pass where BatchNorm has to see
    known and unknown samples together, as the authors say it must."""
    if _has_norm(model):
        return model(torch.cat(parts)).split(len(parts[0]))
    return tuple(map(model, parts))


def _has_norm(model: nn.Module) -> bool:
    return any(isinstance(layer, AnyBatchNorm) for layer in model.modules())


# Images that are destroyed by chance, so that they are of no class (FedOV's data destruction).

DRAWS = 6
"""Random numbers that an image is destroyed by."""
WIDEST = 4
"""Pixels to each side over which an image is blurred, at most."""


def destroyed(images: Tensor, noise: Tensor) -> Tensor:
    """Each image cropped, blurred or erased (one in seven each), or with a half cut out and pasted,
    or turned (two in seven each), as the released code draws it.

    Every operation is on each row alike and exact, so that an image's outlier does not depend on
    its batch: pixels are moved, and a blur is a mean.

    Args:
        images: (B, C, H, W), sides of at least 8.
        noise: (B, :data:`DRAWS`) from N(0, 1).
    """
    fine = 64 * noise  # of a normal number so wide the fraction is uniform, without rounding
    u = [own[:, None, None] for own in (fine - fine.floor()).unbind(1)]
    kind = (7 * u[0]).long()
    height, width = images.shape[2:]
    i = torch.arange(height, device=images.device)[:, None]
    j = torch.arange(width, device=images.device)
    rows, columns = i.expand(len(images), height, width), j.expand(len(images), height, width)
    for number, moved in ((0, _crop), (3, _cut), (4, _turn)):
        own = moved(i, j, u, height, width)
        chosen = (kind == number) | ((kind == number + 2) & (number > 0))
        rows, columns = torch.where(chosen, own[0], rows), torch.where(chosen, own[1], columns)
    each = torch.arange(len(images), device=images.device)[:, None, None]
    found = images[each, :, rows, columns].movedim(3, 1)
    found = torch.where((kind == 1)[:, None], _blurred(images, u), found)
    return found.masked_fill(((kind == 2) & _erased(i, j, u, height, width))[:, None], 0.0)


Places = tuple[Tensor, Tensor]
"""From where each pixel is taken: rows and columns, each (B, H, W) or of fewer axes."""


def _crop(i: Tensor, j: Tensor, u: list[Tensor], height: int, width: int) -> Places:
    """A part of 10 to 33 percent of the area, with sides at 3:4 to 4:3, enlarged."""
    area, ratio = 0.1 + 0.23 * u[1], 0.75 + (4 / 3 - 0.75) * u[2]
    tall, wide = (area * ratio).sqrt(), (area / ratio).sqrt()
    rows = u[3] * (1 - tall) * height + (i + 0.5) * tall
    columns = u[4] * (1 - wide) * width + (j + 0.5) * wide
    return rows.long(), columns.long()


def _cut(i: Tensor, j: Tensor, u: list[Tensor], height: int, width: int) -> Places:
    """Along one axis a half is pasted over another, a quarter away or more; one in three swaps the
    halves instead."""
    moved = []
    for place, size in ((i, height), (j, width)):
        half = size // 2
        near = half // 2
        to = (half * u[1]).long()
        low = torch.where(to < near, to + near, 0)
        high = torch.where(to < near, half - 1, to - near)
        taken = low + ((high - low + 1) * u[2]).long()
        pasted = torch.where((place >= to) & (place < to + half), place - to + taken, place)
        moved.append(torch.where(u[3] < 1 / 3, (place + half) % size, pasted))
    first = u[4] < 0.5
    return torch.where(first, moved[0], i), torch.where(first, j, moved[1])


def _turn(i: Tensor, j: Tensor, u: list[Tensor], height: int, width: int) -> Places:
    """Two squares beside each other, of half the image's height, turned by one to three right
    angles."""
    side = min(height, width) // 2
    top, turns = ((height - side) * u[1]).long(), 1 + (3 * u[2]).long()
    down, right, left = i - top, j % side, j - j % side
    inside = (down >= 0) & (down < side) & (j < 2 * side)
    last = side - 1
    rows = torch.where(turns == 1, right, torch.where(turns == 2, last - down, last - right))
    columns = torch.where(turns == 1, last - down, torch.where(turns == 2, last - right, down))
    return torch.where(inside, top + rows, i), torch.where(inside, left + columns, j)


def _erased(i: Tensor, j: Tensor, u: list[Tensor], height: int, width: int) -> Tensor:
    """Which pixels are in a rectangle of a third to a half of the area, (B, H, W)."""
    area, ratio = 1 / 3 + u[1] / 6, 0.3 + 3.0 * u[2]
    tall = (area * ratio).sqrt().clamp(max=1.0)
    wide = (area / tall).clamp(max=1.0)
    top, left = u[3] * (1 - tall) * height, u[4] * (1 - wide) * width
    inside = (i >= top) & (i < top + tall * height)
    return inside & (j >= left) & (j < left + wide * width)


def _blurred(images: Tensor, u: list[Tensor]) -> Tensor:
    """The mean over 3 to 9 pixels along one axis and 1 to 5 along the other."""
    far, near = 1 + (4 * u[1]).long(), (3 * u[2]).long()
    tall = u[3] < 0.5
    for axis, reach in ((2, torch.where(tall, far, near)), (3, torch.where(tall, near, far))):
        reach = reach[:, None]
        sides = (0, 0, WIDEST, WIDEST) if axis == 2 else (WIDEST, WIDEST, 0, 0)
        wide, size, total = F.pad(images, sides, "reflect"), images.shape[axis], 0 * images
        for shift in range(2 * WIDEST + 1):
            total = total + (abs(shift - WIDEST) <= reach) * wide.narrow(axis, shift, size)
        images = total / (2 * reach + 1)
    return images


@dataclass(frozen=True, kw_only=True)
class FedOVConfig(PrototypesConfig):
    """FedOV's settings: those of its clients, and who votes."""

    classifier: LocalFedOV = LocalFedOV()
    voters: Count | None = None
    """Number of classifiers that vote on a sample: those that know it best. Default: all."""


def run(clients: Clients, server: Server, config: FedOVConfig) -> Outcome:
    """argmax_c sum_k p_k(c | x) over the known classes; ``start`` is of untrained classifiers."""
    updates = clients.train()
    with server.events.phase("fusion"):
        vote = OpenVote(config.voters)
        untrained = [untrained_classifier(t, server) for t in prototypes(clients.members)]
        model = Ensemble([load_classifier(update, server) for update in updates], vote).eval()
        before, after = (server.evaluate(m) for m in (Ensemble(untrained, vote), model))
    return Outcome(model=model, start=before, epochs=[after])


METHOD = Method(
    name="fedov",
    config=FedOVConfig,
    assign=assign,
    run=run,
    spaces=Spaces(
        server={"voters": Choice((1, 3, 5, 10))},
        local={**LOCAL, "classifier.attack_step": LogUniform(5e-4, 2e-2)},
    ),
)
