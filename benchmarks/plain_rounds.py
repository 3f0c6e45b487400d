"""Methods of many rounds as a plain loop over rounds and clients: what benchmarks/rounds.py times.

    python benchmarks/plain_rounds.py --method fedaf --preset fedaf-mnist-small --data-root DIR

Plain PyTorch code: torch.optim, a DataLoader, one client after the other. Settings, data,
partition, models and the losses' formulas are Onefold's. Prints one line of JSON.
"""

import copy
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from plain_relatives import (
    Data,
    as_images,
    batches,
    by_samples,
    fedbn,
    feddyn,
    fedgen,
    mean,
    moon,
    new_model,
    start,
)
from torch import Tensor, nn, optim

from cluster.run.command_line import parse
from cluster.run.prepare import Prepared, prepare
from fl.condensation.task import radius, sliced_wasserstein, within_radius
from fl.methods.fedaf import KnowledgeLoss
from fl.training.features import features_and_logits


def main() -> None:
    """Runs the rounds of a launch's configuration."""
    launch = parse(sys.argv[1:])
    config, prepared = launch.run.options, prepare(launch)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, test = prepared.dataset.train, prepared.dataset.test
    shards = [
        (as_images(train.images[own], device), torch.from_numpy(train.labels[own]).to(device))
        for own in prepared.partition.train
    ]
    unseen = as_images(test.images, device), torch.from_numpy(test.labels).to(device)
    torch.manual_seed(launch.run.seed)
    plays = PLAYS[launch.run.method]
    seconds, accuracies = [], []
    began = time.perf_counter()
    for model in plays(prepared, config, shards, launch.run.rounds, device):
        accuracies.append(accuracy(model, unseen))
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    print(json.dumps({"seconds": seconds, "accuracies": accuracies}))


def averaging(
    prepared: Prepared, config: Any, shards: list[Data], rounds: int, device: torch.device
) -> Iterator[nn.Module]:
    """FedAvg, weighted by samples; yields the global model after each round."""
    how, model = config.classifier, start(prepared, config, device)
    for _ in range(rounds):
        states = []
        for shard in shards:
            local = copy.deepcopy(model).train()
            sgd = optim.SGD(local.parameters(), lr=how.lr, momentum=how.momentum)
            for _ in range(how.epochs):
                for x, y in batches(shard, how.batch_size):
                    sgd.zero_grad()
                    F.cross_entropy(local(x), y).backward()
                    sgd.step()
            states.append(local.state_dict())
        model.load_state_dict(mean(states, by_samples(shards)))
        yield model


def condensing(
    prepared: Prepared, config: Any, shards: list[Data], rounds: int, device: torch.device
) -> Iterator[nn.Module]:
    """FedAF, or FedDM, whose settings have neither of FedAF's terms."""
    how, classes = config.local, prepared.run_spec.num_classes
    model = new_model(prepared, how.model, how.width).to(device)
    loss = KnowledgeLoss(weight=getattr(config, "knowledge", 0.0), temperature=how.temperature)
    for _ in range(rounds):
        logits = torch.stack([mean_logits(model, shard, classes) for shard in shards])
        goals = logits.nanmean(0)
        soft = (logits / how.temperature).softmax(2).nanmean(0)
        condensed = [condense(prepared, model, shard, goals, how) for shard in shards]
        images = torch.cat([own for own, _ in condensed])
        labels = torch.cat([own for _, own in condensed])
        sgd = optim.SGD(model.parameters(), lr=config.fusion.lr, momentum=config.fusion.momentum)
        model.train()
        for _ in range(config.fusion.epochs):
            for x, y in batches((images, labels), config.fusion.batch_size):
                sgd.zero_grad()
                loss(model, {"images": x, "labels": y, "soft_labels": soft[y]}).backward()
                sgd.step()
        yield model


@torch.no_grad()
def mean_logits(model: nn.Module, shard: Data, classes: int) -> Tensor:
    """The model's mean logits on each class, NaN for classes that the client lacks."""
    model.eval()
    images, labels = shard
    rows = torch.full((classes, classes), torch.nan, device=images.device)
    for c in labels.unique().tolist():
        rows[c] = model(images[labels == c]).mean(0)
    return rows


def condense(prepared: Prepared, model: nn.Module, shard: Data, goals: Tensor, how: Any) -> Data:
    """One client's images and labels."""
    own, labels = shard
    held = [own[labels == c] for c in labels.unique()]
    start = [
        torch.stack(
            [
                rows[torch.randint(len(rows), (how.averaged,))].mean(0)
                for _ in range(how.images_per_class)
            ]
        )
        for rows in held
    ]
    images = torch.cat(start).requires_grad_()
    sgd = optim.SGD([images], lr=how.lr, momentum=how.momentum)
    for _ in range(how.steps):
        network = moved(prepared, model, how)
        real = torch.cat([rows[torch.randperm(len(rows))[: how.batch_size]] for rows in held])
        sizes = [min(len(rows), how.batch_size) for rows in held]
        with torch.no_grad():
            wanted, _ = features_and_logits(network, real)
        got, logits = features_and_logits(network, images)
        parts = zip(
            wanted.split(sizes),
            got.split(how.images_per_class),
            logits.split(how.images_per_class),
            labels.unique(),
            strict=True,
        )
        loss = torch.zeros((), device=images.device)
        for theirs, ours, answers, c in parts:
            loss = loss + (theirs.mean(0) - ours.mean(0)).square().sum()
            if how.collaboration:
                pair = answers.mean(0)[None], goals[c][None]
                loss = loss + how.collaboration * sliced_wasserstein(*pair, torch.empty(0))
        sgd.zero_grad()
        loss.backward()
        if how.clip is not None:
            nn.utils.clip_grad_norm_([images], how.clip)
        sgd.step()
    return images.detach(), labels.unique().repeat_interleave(how.images_per_class)


@torch.no_grad()
def moved(prepared: Prepared, model: nn.Module, how: Any) -> nn.Module:
    """A network near the global model; each step draws its own."""
    network = copy.deepcopy(model).train().requires_grad_(False)
    if how.gamma < 1:
        fresh = new_model(prepared, how.model, how.width).to(next(model.parameters()).device)
        for w, other in zip(network.parameters(), fresh.parameters(), strict=True):
            w.mul_(how.gamma).add_(other, alpha=1 - how.gamma)
    rho = radius(how, prepared.run_spec)
    if rho > 0:
        weights = within_radius(list(network.parameters()), rho, torch.default_generator)
        for w, other in zip(network.parameters(), weights, strict=True):
            w.copy_(other)
    return network


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """Share of images that the model classifies correctly."""
    model.eval()
    hits = [
        (model(x).argmax(1) == y).sum().item()
        for x, y in zip(data[0].split(256), data[1].split(256), strict=True)
    ]
    return sum(hits) / len(data[1])


PLAYS = {
    "fedavg": averaging,
    "fedbn": fedbn,
    "moon": moon,
    "feddyn": feddyn,
    "fedgen": fedgen,
    "feddm": condensing,
    "fedaf": condensing,
}
"""By method: a function that yields the global model after each round."""


if __name__ == "__main__":
    main()
