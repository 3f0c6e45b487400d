"""Condensation against a naive twin, and at the edges of what a client may hold."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn, optim

from fl.condensation.config import LocalCondensation
from fl.condensation.network import features_and_logits, within_radius
from fl.condensation.task import condense, tell_mean_logits
from fl.data.shard import Shard
from fl.federation import TaskInput
from fl.models import build_classifier
from fl.seeding import torch_seeded
from fl.training.task import train_many
from fl.wire import prefixed
from tests.fl.toy import PROBLEM, client, same_bits, shard, task_input

CONFIG = LocalCondensation(
    width=0.03, images_per_class=3, steps=3, lr=5.0, batch_size=4, gamma=0.8, clip=0.5
)
HELD = (6, 0, 3)  # samples per class: one is missing, one has fewer than a batch


def global_model(config: LocalCondensation = CONFIG) -> nn.Module:
    with torch_seeded(7, "test/global"):
        return build_classifier(config.model, PROBLEM.image_shape, 3, width=config.width)


def inputs(
    config: LocalCondensation = CONFIG, data: Shard | None = None, **changes: object
) -> TaskInput:
    given = task_input(config, shard(*HELD) if data is None else data)
    return replace(given, broadcast=prefixed("classifier", global_model(config)), **changes)


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
    with torch_seeded(seed, "condense/network", given.client.id):
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


def test_mean_logits_are_of_each_held_class_and_soft_labels_their_softmax() -> None:
    config = replace(CONFIG, temperature=2.0)
    given, model = inputs(config), global_model().eval()
    found = tell_mean_logits(given).tensors
    for c, count in enumerate(HELD):
        own = given.shard.images[given.shard.labels == c]
        if not count:
            assert found["mean_logits"][c].isnan().all()
            assert found["soft_labels"][c].isnan().all()
            continue
        expected = sum(model(image[None])[0] for image in own) / count
        torch.testing.assert_close(found["mean_logits"][c], expected, rtol=1e-4, atol=1e-5)
        powers = (expected / 2).exp()
        torch.testing.assert_close(
            found["soft_labels"][c], powers / powers.sum(), rtol=1e-4, atol=1e-5
        )


def test_each_setting_changes_the_images_and_the_same_seed_gives_the_same_bits() -> None:
    first = condense(inputs()).tensors
    torch.rand(3)  # the global stream decides nothing
    assert same_bits(first, condense(inputs()).tensors)
    others = [
        inputs(replace(CONFIG, gamma=1.0)),
        inputs(replace(CONFIG, gamma=1.0, rho=1.0)),
        inputs(replace(CONFIG, network="eval")),
        inputs(replace(CONFIG, init="noise")),
        inputs(replace(CONFIG, averaged=1)),
        inputs(replace(CONFIG, augment=("rotate",))),
        inputs(round=2),
    ]
    images = [first["images"], *(condense(given).tensors["images"] for given in others)]
    for k, one in enumerate(images):
        assert one.isfinite().all()
        assert not any(torch.equal(one, other) for other in images[:k])


def test_pixels_leave_as_bytes() -> None:
    as_float = condense(inputs()).tensors["images"]
    as_bytes = condense(inputs(replace(CONFIG, pixels="uint8"))).tensors["images"]
    assert as_bytes.dtype == torch.uint8
    assert as_bytes.nbytes == 2 * 3 * 28 * 28
    difference = as_bytes.float() / 255 - as_float.clamp(0, 1)
    assert difference.abs().max() <= 0.5 / 255 + 1e-6


def test_one_sample_more_images_than_samples_and_no_class_at_all() -> None:
    lonely = condense(inputs(data=shard(0, 1, 0))).tensors
    assert lonely["classes"].tolist() == [1]
    assert lonely["images"].shape == (3, 1, 28, 28)
    few = replace(CONFIG, min_samples=7)
    assert condense(inputs(few)).tensors["images"].shape == (0, 1, 28, 28)
    assert tell_mean_logits(inputs(few)).tensors["mean_logits"].isnan().all()
    assert condense(inputs(replace(CONFIG, min_samples=4))).tensors["classes"].tolist() == [0]


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
            assert alone.stats == found.stats
    assert not same_bits(together[0].tensors, together[4].tensors)
    assert together[2].tensors["images"].shape == (0, 1, 28, 28)


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


def test_weights_within_a_radius_keep_their_distance() -> None:
    weights = [torch.ones(30, 20), torch.ones(20)]
    stream = torch.Generator().manual_seed(0)
    for rho, expected in [(2.0, 2.0), (1e6, 620**0.5)]:
        moved = within_radius(weights, rho, stream)
        apart = torch.cat([(a - b).flatten() for a, b in zip(moved, weights, strict=True)])
        assert apart.norm().item() == pytest.approx(expected, rel=0.1 if rho > 100 else 1e-4)
