"""Learning of condensed images: against a naive twin, alone and in company."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, optim

from fl.condensation.task import LocalCondensation, condense
from fl.exchange import prefixed
from fl.federation import TaskInput
from fl.models.registry import build_classifier
from fl.seeding import seeded
from fl.training.features import features_and_logits
from fl.training.task import train_many
from tests.fl.condensation.condensing import CONFIG, global_model, inputs
from tests.fl.toy import PROBLEM, client, same_bits, shard


def naive(given: TaskInput, config: LocalCondensation, goals: Tensor) -> Tensor:
    """Eqs. 3 to 6, 10 and 17, class by class, with torch's own optimiser."""
    data, seed = given.shard, given.run_spec.seed
    held = [c for c in range(3) if (data.labels == c).any()]
    own = {c: data.images[data.labels == c] for c in held}
    start = given.stream("condense/start")
    drawn = {
        c: torch.randint(len(own[c]), (config.images_per_class, config.averaged), generator=start)
        for c in held
    }
    images = {
        c: torch.stack([sum(own[c][i] for i in row) / config.averaged for row in drawn[c]])
        for c in held
    }
    condensed = torch.cat([images[c] for c in held]).requires_grad_()
    optimizer = optim.SGD([condensed], lr=config.lr, momentum=config.momentum)
    order = given.stream("condense/batches")
    with seeded(seed, "condense/network", given.client.id):
        for _ in range(config.steps):
            network = global_model(config)
            fresh = build_classifier(config.model, PROBLEM.image_shape, 3, width=config.width)
            with torch.no_grad():
                for w, f in zip(network.parameters(), fresh.parameters(), strict=True):
                    w.copy_(config.gamma * w + (1 - config.gamma) * f)
            real = []
            for c in held:
                mixed = torch.randperm(len(own[c]), generator=order).tolist()
                real += [own[c][mixed[i % len(mixed)]] for i in range(config.batch_size)]
            h_real = network.features(torch.stack(real)).flatten(1)  # type: ignore[operator]
            h = network.features(condensed).flatten(1)  # type: ignore[operator]
            loss = torch.zeros(())
            for position, c in enumerate(held):
                theirs = h_real[position * config.batch_size :][: config.batch_size].mean(0)
                ours = h[position * config.images_per_class :][: config.images_per_class]
                loss = loss + ((theirs.detach() - ours.mean(0)) ** 2).sum()
                u = sum(network.classifier(row) for row in ours) / len(ours)  # type: ignore[operator]
                distance = ((u - goals[c]) ** 2).sum().sqrt() / 3**0.5
                loss = loss + config.collaboration * distance
            optimizer.zero_grad()
            loss.backward()
            if config.clip is not None:
                norm = condensed.grad.norm()  # type: ignore[union-attr]
                condensed.grad *= min(1.0, config.clip / (norm.item() + 1e-6))
            optimizer.step()
    return condensed.detach()


@pytest.mark.parametrize("changes", [{}, {"clip": None, "collaboration": 3.0}])
def test_condense_is_the_naive_loop(changes: dict[str, float]) -> None:
    config = replace(CONFIG, **changes)
    goals = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    given = inputs(config)
    if config.collaboration:
        given = replace(given, broadcast={**given.broadcast, "mean_logits": goals})
    found = condense(given).tensors
    assert found["classes"].tolist() == [0, 2]
    torch.testing.assert_close(found["images"], naive(given, config, goals), rtol=1e-3, atol=1e-4)


COMPANY = [shard(6, 0, 3), shard(1, 1, 1), shard(0, 0, 0), shard(0, 9, 0), shard(40, 2, 7)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gamma": 1.0, "rho": 1.0, "clip": None},
        {"network": "eval", "augment": ("rotate", "cutout"), "init": "noise"},
        {"model": "resnet18", "width": 0.03},
        {"model": "vgg9", "width": 0.03},  # whose dropout draws from one stream
    ],
    ids=["fedaf", "feddm", "eval", "resnet18", "vgg9"],
)
def test_company_leaves_every_bit_as_it_is(changes: dict[str, object]) -> None:
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    goals = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    sent = {**prefixed("classifier", global_model(config)), "mean_logits": goals}
    clients = [
        replace(inputs(config, data), client=client(k, config), broadcast=sent)
        for k, data in enumerate(COMPANY)
    ]
    together = train_many(condense, clients)
    backwards = train_many(condense, clients[::-1])[::-1]
    for own, one, other in zip(clients, together, backwards, strict=True):
        alone = condense(own)
        for found in (one, other):
            assert same_bits(alone.tensors, found.tensors)
            assert (alone.stats, alone.losses) == (found.stats, found.losses)
    assert not same_bits(together[0].tensors, together[4].tensors)
    assert together[2].tensors["images"].shape == (0, 1, 28, 28)


def test_the_loss_of_each_step_is_told_and_ends_with_the_last() -> None:
    config = replace(CONFIG, steps=5)
    found = condense(inputs(config))
    assert len(found.losses) == found.stats["steps"] == 5
    assert found.losses[-1] == pytest.approx(found.stats["train_loss"], rel=1e-4)
    nothing = condense(inputs(config, shard(0, 0, 0)))
    assert (nothing.losses, nothing.stats) == ([], {})


def test_images_come_to_resemble_the_real_ones_features() -> None:
    config = replace(CONFIG, steps=40, init="noise", gamma=1.0, clip=None, lr=20.0)
    given = inputs(config, shard(20, 20, 20))
    network = global_model().train()

    def distance(images: Tensor) -> float:
        with torch.no_grad():
            real, _ = features_and_logits(copy.deepcopy(network), given.shard.images)
            ours, _ = features_and_logits(copy.deepcopy(network), images)
        gaps = real.view(3, 20, -1).mean(1) - ours.view(3, 3, -1).mean(1)
        return gaps.square().sum().item()

    before = condense(replace(given, client=inputs(replace(config, lr=1e-9)).client))
    after = condense(given)
    assert distance(after.tensors["images"]) < distance(before.tensors["images"]) / 4
