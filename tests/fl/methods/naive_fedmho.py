"""FedMHO's server, once more: short, slow and obvious. The oracle of test_fedmho.py.

It shares the models and the random streams with the real one, and nothing else: sums are Python
loops, teachers are asked for every batch, and the filter sorts a list.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn, optim

from fl.federation import RunSpec, Update
from fl.methods.fedmho import FedMHOConfig
from fl.models.registry import build_classifier, build_generator
from fl.seeding import seed_for


@dataclass
class NaiveRun:
    start: dict[str, Tensor]
    counts: list[list[int]]
    images: Tensor
    labels: list[int]
    kept: list[int]
    losses: list[float]


def naive_fedmho(
    updates: list[Update], run_spec: RunSpec, config: FedMHOConfig, teacher: str, steps: int
) -> NaiveRun:
    strong = [u for u in updates if u.client.role == "classifier"]
    weak = [u for u in updates if u.client.role == "generator"]

    locals_ = [classifier(u, run_spec) for u in strong]
    model = copy.deepcopy(locals_[0])
    start = {}
    for name in model.state_dict():  # Eq. 4
        start[name] = sum(m.state_dict()[name] for m in locals_) / len(locals_)
    model.load_state_dict(start)
    start_model = copy.deepcopy(model)

    counts = []
    for u in weak:  # the released code's allocation
        row = []
        for c in range(run_spec.num_classes):
            quota = config.num_samples // run_spec.num_classes
            all_squares = sum(int(v.tensors["label_counts"][c]) ** 2 for v in weak)
            own = int(u.tensors["label_counts"][c]) ** 2
            row.append(quota * own // all_squares if all_squares else 0)
        counts.append(row)

    images, labels = [], []
    for u, row in zip(weak, counts, strict=True):  # Section 4.2.2
        decode = decoder(u, run_spec)
        stream = torch.Generator().manual_seed(seed_for(run_spec.seed, "synthesis", u.client.id))
        noise = torch.randn(sum(row), config.generator.latent, generator=stream)
        own_labels = [c for c, n in enumerate(row) for _ in range(n)]
        for z, c in zip(noise, own_labels, strict=True):
            onehot = torch.eye(run_spec.num_classes)[[c]]
            with torch.no_grad():
                images.append(torch.sigmoid(decode(z[None], onehot))[0])
        labels += own_labels

    kept = []
    for c in range(run_spec.num_classes):  # Algorithm 2
        mine = [i for i, label in enumerate(labels) if label == c]
        if mine:
            centre = sum(images[i].double() for i in mine) / len(mine)
            far = {i: math.sqrt(((images[i].double() - centre) ** 2).sum()) for i in mine}
            nearest = sorted(mine, key=lambda i: (far[i], i))
            kept += nearest[: max(1, math.floor(config.keep * len(mine) + 1e-9))]
    kept.sort()

    teachers = {"none": [], "models": locals_, "start": [start_model]}[teacher]
    x = torch.stack([images[i] for i in kept])
    y = torch.tensor([labels[i] for i in kept])
    losses = naive_fit(model, x, y, teachers, run_spec, config, steps)
    return NaiveRun(start, counts, torch.stack(images), labels, kept, losses)


def naive_fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    teachers: list[nn.Module],
    run_spec: RunSpec,
    config: FedMHOConfig,
    steps: int,
) -> list[float]:
    optimizer = optim.Adam(model.parameters(), lr=config.fusion.lr)
    order = torch.Generator().manual_seed(seed_for(run_spec.seed, "fusion/order"))
    model.train()
    losses: list[float] = []
    epoch = 0
    while True:
        epoch += 1
        shuffled = torch.randperm(len(y), generator=order)
        for first in range(0, len(y), config.fusion.batch_size):
            batch = shuffled[first : first + config.fusion.batch_size]
            with naive_dropout(model, run_spec.seed, epoch, batch.tolist()):
                student = torch.softmax(model(x[batch]), dim=1)
            loss = 0.0
            for p, label, image in zip(student, y[batch], x[batch], strict=True):
                cross_entropy = -torch.log(p[label])
                if teachers:
                    with torch.no_grad():
                        logits = sum(t.eval()(image[None])[0] for t in teachers) / len(teachers)
                    q = torch.softmax(logits, dim=0)
                    kl = (q * (torch.log(q) - torch.log(p))).sum()
                    loss += config.lam * cross_entropy + (1 - config.lam) * kl  # Eq. 7
                else:
                    loss += cross_entropy
            loss = loss / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == steps:
                return losses


@contextmanager
def naive_dropout(model: nn.Module, seed: int, epoch: int, rows: list[int]) -> Iterator[None]:
    """Masks by a hash of epoch, sample, layer and unit, one Python number after another."""
    layers = [m for m in model.modules() if isinstance(m, nn.Dropout)]
    start = seed_for(seed, f"fusion/dropout/{epoch}") % 2**32

    def masked(number: int, x: Tensor) -> Tensor:
        units = [scrambled((number * 0x9E3779B1 + unit) % 2**32) for unit in range(x.shape[1])]
        kept = [[scrambled(scrambled(row ^ start) ^ u) >= 2**31 for u in units] for row in rows]
        return 2 * x * torch.tensor(kept)

    hooks = [
        layer.register_forward_hook(lambda _, args, __, n=n: masked(n, args[0]))
        for n, layer in enumerate(layers)
    ]
    yield
    for hook in hooks:
        hook.remove()


def scrambled(x: int) -> int:
    x ^= x >> 16
    x = x * 0x21F0AAAD % 2**32
    x ^= x >> 15
    x = x * 0x735A2D97 % 2**32
    return x ^ x >> 15


def classifier(update: Update, run_spec: RunSpec) -> nn.Module:
    training = update.client.training
    model = build_classifier(
        training.model, run_spec.image_shape, run_spec.num_classes, width=training.width
    )
    model.load_state_dict(stripped(update, "classifier."))
    return model.eval()


def decoder(update: Update, run_spec: RunSpec) -> nn.Module:
    training = update.client.training
    model = build_generator(
        training.model,
        run_spec.image_shape,
        run_spec.num_classes,
        latent=training.latent,
        width=training.width,
    ).decoder
    model.load_state_dict(stripped(update, "decoder."))
    return model.eval()


def stripped(update: Update, prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in update.tensors.items() if n.startswith(prefix)}
