"""Condensation: its record, its images, its networks, its losses, and what it uploads."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fl.condensation.task import (
    NOISE_MEAN,
    NOISE_STD,
    ByClass,
    LocalCondensation,
    Networks,
    class_means,
    condense,
    knowledge_matching,
    radius,
    random_directions,
    send_mean_logits,
    sliced_wasserstein,
    within_radius,
)
from fl.data.shard import Shard
from fl.errors import UserError
from fl.inputs import Inputs
from fl.models.registry import build_classifier
from tests.fl.condensation.condensing import CONFIG, HELD, global_model, inputs
from tests.fl.toy import CPU, PROBLEM, same_bits, shard


def test_mean_logits_are_of_each_held_class_and_soft_labels_their_softmax() -> None:
    config = replace(CONFIG, temperature=2.0)
    given, model = inputs(config), global_model().eval()
    found = send_mean_logits(given).tensors
    for c, count in enumerate(HELD):
        own = given.shard.images[given.shard.labels == c]
        if not count:
            assert not found["mean_logits"][c].any()
            assert not found["soft_labels"][c].any()
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
    assert not send_mean_logits(inputs(few)).tensors["mean_logits"].any()
    assert condense(inputs(replace(CONFIG, min_samples=4))).tensors["classes"].tolist() == [0]


def test_impossible_condensation_is_refused() -> None:
    with pytest.raises(UserError, match="convnet does not take images"):
        CONFIG.check(replace(PROBLEM, inputs=Inputs((1, 4, 4))))


def test_a_client_with_all_classes_sends_as_many_bytes_of_images_as_its_record_says() -> None:
    sent = condense(inputs(data=shard(2, 1, 4))).tensors["images"]
    assert CONFIG.upload_bytes(PROBLEM) == sent.nbytes


def test_a_probe_sees_all_classes_in_each_of_its_few_steps() -> None:
    probe, samples = CONFIG.probe(2, num_classes=3)
    assert probe == replace(CONFIG, steps=2)
    assert samples == 3 * CONFIG.batch_size
    assert CONFIG.work(samples) == CONFIG.steps * samples


LABELS = torch.tensor([2, 0, 2, 4, 0, 2, 0, 0])
"""Four of class 0, three of class 2, one of class 4, of six classes."""


def data(min_samples: int = 1, labels: Tensor = LABELS) -> ByClass:
    """Image i has a single bright pixel, the i-th: sums of images tell whose they are."""
    images = torch.eye(len(labels)).view(len(labels), 1, 1, len(labels))
    return ByClass(Shard(images, labels, 6), min_samples, CPU)


def stream_of(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shown(images: Tensor, per_class: int) -> list[Tensor]:
    """Of each class, how often each image was taken, (N,)."""
    return list(images.flatten(1).view(-1, per_class, len(LABELS)).sum(1))


@pytest.mark.parametrize(
    ("min_samples", "classes"), [(1, [0, 2, 4]), (2, [0, 2]), (4, [0]), (5, [])]
)
def test_classes_with_too_few_samples_are_left_out(min_samples: int, classes: list[int]) -> None:
    found = data(min_samples)
    assert found.classes.tolist() == classes
    assert len(list(found)) == len(classes)


@pytest.mark.parametrize("averaged", [1, 2, 5])
def test_each_image_starts_as_the_mean_of_so_many_of_its_class(averaged: int) -> None:
    """Some of them perhaps twice: a class may have fewer."""
    start = data().start(3, averaged, stream_of(), noise=False)
    assert start.shape == (9, 1, 1, len(LABELS))
    for position, image in enumerate(start):
        taken = image.flatten() * averaged
        torch.testing.assert_close(taken, taken.round())
        assert taken.sum().item() == pytest.approx(averaged)
        own = (0, 2, 4)[position // 3] == LABELS
        assert taken[~own].sum() == 0


def test_noise_is_around_the_middle_of_the_pixels_range_and_of_no_image() -> None:
    noise = data().start(400, 5, stream_of(), noise=True)
    assert noise.shape == (1200, 1, 1, len(LABELS))
    assert noise.mean().item() == pytest.approx(NOISE_MEAN, abs=0.01)
    assert noise.std().item() == pytest.approx(NOISE_STD, abs=0.01)


@pytest.mark.parametrize("per_class", [1, 2, 3, 4, 9])
def test_a_batch_repeats_no_sample_more_often_than_another_of_its_class(per_class: int) -> None:
    own = data()
    batch = own.images[own.draw_batch(per_class, stream_of())]
    assert len(batch) == 3 * per_class
    for c, taken in zip((0, 2, 4), shown(batch, per_class), strict=True):
        own = taken[c == LABELS]
        assert own.sum() == per_class
        assert own.max() - own.min() <= 1
        assert taken[c != LABELS].sum() == 0


CLOSED = torch.empty(0, 5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_class_means_are_each_classs_own_and_tell_who_is_missing() -> None:
    values, labels = normal(7, 3), torch.tensor([2, 0, 2, 4, 0, 0, 2])
    means, there = class_means(values, labels, 5)
    assert there.tolist() == [True, False, True, False, True]
    for c in range(5):
        own = [v for v, label in zip(values, labels.tolist(), strict=True) if label == c]
        expected = sum(own[1:], start=own[0]) / len(own) if own else torch.zeros(3)
        torch.testing.assert_close(means[c], expected)


def test_the_closed_form_is_the_limit_of_many_directions() -> None:
    u, v = normal(3, 5), normal(3, 5, seed=1)
    closed = sliced_wasserstein(u, v, CLOSED)
    many = random_directions(200_000, 5, torch.Generator().manual_seed(2))
    torch.testing.assert_close(many.norm(dim=1), torch.ones(len(many)))
    assert sliced_wasserstein(u, v, many).item() == pytest.approx(closed.item(), rel=0.01)
    assert closed.item() == pytest.approx(
        sum(math.dist(a, b) for a, b in zip(u.tolist(), v.tolist(), strict=True)) / math.sqrt(5),
        rel=1e-5,
    )


def test_the_sampled_form_sorts_and_compares_along_each_direction() -> None:
    u, v = normal(3, 5), normal(3, 5, seed=1)
    directions = random_directions(4, 5, torch.Generator().manual_seed(2))
    expected = 0.0
    for a, b in zip(u, v, strict=True):
        # The Wasserstein distance on a line of two single points is how far they lie apart.
        gaps = [float(a @ d - b @ d) for d in directions]
        expected += math.sqrt(sum(gap**2 for gap in gaps) / len(gaps))
    assert sliced_wasserstein(u, v, directions).item() == pytest.approx(expected, rel=1e-5)


def test_where_nothing_is_apart_the_gradient_is_zero_and_not_nan() -> None:
    u = normal(3, 5).requires_grad_()
    sliced_wasserstein(u, u.detach().clone(), CLOSED).backward()
    assert u.grad is not None
    assert torch.equal(u.grad, torch.zeros(3, 5))


def test_knowledge_matching_is_the_mean_of_both_divergences() -> None:
    r, t = normal(4, 6).softmax(1), normal(4, 6, seed=1).softmax(1)
    expected = 0.0
    for p, q in zip(r.tolist(), t.tolist(), strict=True):
        forth = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        back = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
        expected += (forth + back) / 2 / 4
    there = torch.ones(4, dtype=torch.bool)
    assert knowledge_matching(r, t.log(), there).item() == pytest.approx(expected, rel=1e-5)
    assert knowledge_matching(r, r.log(), there).item() == pytest.approx(0, abs=1e-6)
    sure = torch.eye(6)[:4]  # a label of exactly 0 or 1
    assert knowledge_matching(sure, t.log(), there).isfinite()
    absent = (
        torch.cat([r, torch.zeros(1, 6)]),
        torch.cat([t.log(), torch.full((1, 6), -math.log(6))]),
    )
    with_absent = knowledge_matching(*absent, torch.tensor([True] * 4 + [False]))
    assert with_absent.item() == pytest.approx(expected, rel=1e-5)


NEAR = replace(CONFIG, gamma=1.0, rho=0.0)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([w.detach().flatten() for w in model.parameters()])


def drawn_weights(
    config: LocalCondensation, model: nn.Module | None = None, **changes: object
) -> Tensor:
    """The weights of the first two steps' networks, a row for each."""
    given = inputs(config, **changes)
    networks = Networks(model or global_model(), given, config)
    found = []
    for _ in range(2):
        networks.move()
        found.append(weights(networks.network))
    return torch.stack(found)


def test_weights_within_a_radius_keep_their_distance() -> None:
    weights = [torch.ones(30, 20), torch.ones(20)]
    stream = torch.Generator().manual_seed(0)
    for rho, expected in [(2.0, 2.0), (1e6, 620**0.5)]:
        moved = within_radius(weights, rho, stream)
        apart = torch.cat([(a - b).flatten() for a, b in zip(moved, weights, strict=True)])
        assert apart.norm().item() == pytest.approx(expected, rel=0.1 if rho > 100 else 1e-4)


def test_each_step_draws_a_network_within_the_radius_from_the_clients_streams_alone() -> None:
    config = replace(NEAR, rho=2.0)
    expected = radius(config, inputs(config).run_spec)
    before = torch.random.get_rng_state()
    drawn = drawn_weights(config)
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second = drawn - weights(global_model())
    for apart in (first, second):
        assert apart.norm().item() == pytest.approx(expected, rel=1e-4)
    assert abs(torch.cosine_similarity(first, second, dim=0)) < 0.1
    assert not torch.equal(drawn_weights(config, round=2), drawn)


def test_without_a_mix_and_a_radius_each_step_has_the_global_model_itself() -> None:
    expected = weights(global_model())
    for found in drawn_weights(NEAR):
        assert torch.equal(found, expected)


def test_weights_lie_on_the_line_between_the_global_model_and_a_random_start() -> None:
    """Eq. 17: gamma w + (1 - gamma) w'. At gamma 0 what is left is w', whatever the model."""
    own, other = global_model(), global_model()
    with torch.no_grad():
        for w in other.parameters():
            w.add_(1.0)
    before = torch.random.get_rng_state()
    starts = drawn_weights(replace(NEAR, gamma=0.0), own)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(starts, drawn_weights(replace(NEAR, gamma=0.0), other))
    assert not torch.equal(starts[0], starts[1])
    for gamma in (0.3, 0.9):
        expected = gamma * weights(own) + (1 - gamma) * starts
        torch.testing.assert_close(drawn_weights(replace(NEAR, gamma=gamma), own), expected)


@pytest.mark.parametrize("model", ["convnet", "cnn"])
def test_at_any_width_each_weight_is_moved_as_far(model: str) -> None:
    run_spec = inputs(CONFIG).run_spec
    moved = []
    for width in (0.125, 0.5, 1.0):
        config = replace(NEAR, model=model, width=width, rho=5.0)
        network = build_classifier(model, run_spec.image_shape, run_spec.num_classes, width=width)
        count = sum(w.numel() for w in network.parameters())
        moved.append(radius(config, run_spec) / count**0.5)
    assert moved == pytest.approx([moved[-1]] * 3)
    assert radius(config, run_spec) == 5.0
    assert radius(replace(config, width=0.5, rho=0.0), run_spec) == 0.0


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_network_is_frozen_in_its_mode_and_the_global_model_untouched(mode: str) -> None:
    config, model = replace(NEAR, rho=2.0, network=mode), global_model()  # type: ignore[arg-type]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    networks = Networks(model, inputs(config), config)
    networks.move()
    assert not any(p.requires_grad for p in networks.network.parameters())
    assert networks.network.training == (mode == "train")
    networks.network(torch.rand(4, 1, 28, 28))
    assert same_bits(model.state_dict(), before)
