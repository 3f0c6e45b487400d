"""A client's distilled set, and distances to the nearest real image."""

from dataclasses import replace

import pytest
import torch

from fl.condensation.images import nearest
from fl.condensation.kip import KipTraining, checked_set, distil, joined, share_images
from fl.data.shard import Shard
from fl.federation import TaskInput
from tests.fl.toy import PROBLEM, shard, task_input

KIP = KipTraining(images=6, steps=4, targets=6, stop="never")


def inputs(config: KipTraining = KIP, *counts: int) -> TaskInput:
    data = shard(*(counts or (8, 8, 8)))
    return task_input(config, data)


def test_a_set_has_as_many_images_of_each_class_and_its_names_tell_the_labels() -> None:
    tensors = distil(inputs()).tensors
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        f"images.{c}": (2, 1, 28, 28) for c in range(3)
    }
    assert {t.dtype for t in tensors.values()} == {torch.uint8}
    few = distil(inputs(replace(KIP, images=30), 2, 20, 0)).tensors
    assert {name: len(t) for name, t in few.items()} == {"images.0": 2, "images.1": 15}


def test_with_one_class_the_released_rule_stops_after_a_step_and_never_does_not() -> None:
    """All targets have one label then, so that every prediction is right."""
    one = distil(inputs(replace(KIP, stop="accuracy", steps=50), 12, 0, 0))
    assert one.stats["steps"] == 1
    assert distil(inputs(replace(KIP, steps=50), 12, 0, 0)).stats["steps"] == 50
    # A step of 0.004 deviations is less than half a grey level: rounded, it is the real images.
    assert one.stats["nearest"] == 0


def test_more_steps_move_images_further_from_real_ones() -> None:
    near, far = (
        distil(inputs(replace(KIP, steps=steps, lr=0.05))).stats["nearest"] for steps in (1, 40)
    )
    assert near < far


def test_a_distillation_tells_its_loss_as_a_curve() -> None:
    """Of targets that are all the client's images, and so are the same in each step."""
    found = distil(inputs(replace(KIP, steps=120, images=3, targets=24, lr=0.05)))
    assert len(found.losses) == 50
    assert found.losses[-1] < 0.9 * found.losses[0]
    assert len(distil(inputs()).losses) == KIP.steps
    assert share_images(inputs()).losses == []


def test_without_distillation_the_real_images_go() -> None:
    found = share_images(inputs())
    assert found.stats["nearest"] == 0
    data = inputs().shard
    for c in range(3):
        real = (data.images[data.labels == c] * 255).round().to(torch.uint8)
        assert torch.equal(found.tensors[f"images.{c}"], real)


def test_the_same_client_distils_the_same_images() -> None:
    one, again = distil(inputs()).tensors, distil(inputs()).tensors
    assert all(torch.equal(one[name], again[name]) for name in one)
    other = distil(replace(inputs(), client=replace(inputs().client, id=1))).tensors
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_heads_data_are_its_own_and_what_it_was_sent() -> None:
    own = shard(1, 1, 0)
    sets = {
        **checked_set(
            11, {"images.2": torch.full((2, 1, 28, 28), 255, dtype=torch.uint8)}, PROBLEM
        ),
        **checked_set(4, {"images.0": torch.zeros(1, 1, 28, 28, dtype=torch.uint8)}, PROBLEM),
    }
    together = joined(own, sets)
    assert isinstance(together, Shard)
    assert together.labels.tolist() == [0, 1, 0, 2, 2]  # by client, then class
    assert torch.equal(together.images[:2], own.images)
    assert float(together.images[3].min()) == 1.0
    assert torch.equal(joined(own, {}).images, own.images)


IMAGES = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"images.3": IMAGES}, "images.3, which is no images of a class"),
        ({"pictures.0": IMAGES}, "pictures.0"),
        ({"images.x": IMAGES}, "images.x"),
        ({"images.0": IMAGES.float()}, "images.0"),
        ({"images.0": IMAGES[..., 1:, :]}, "images.0"),
        ({}, "no images"),
    ],
)
def test_what_is_no_images_of_a_class_is_refused_by_the_senders_name(
    tensors: dict[str, torch.Tensor], said: str
) -> None:
    with pytest.raises(ValueError, match=f"client 7 sent {said}"):
        checked_set(7, tensors, PROBLEM)


def noise(count: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


def test_distances_are_those_of_the_plain_formula() -> None:
    ours, others = noise(6), noise(9, seed=1)
    found, places = nearest(ours, others)
    for image, distance, place in zip(ours, found.tolist(), places.tolist(), strict=True):
        plain = [
            float((image.float() / 255 - other.float() / 255).square().mean().sqrt())
            for other in others
        ]
        assert distance == pytest.approx(min(plain), rel=1e-5)
        assert place == plain.index(min(plain))


def test_a_copy_among_many_has_a_distance_of_0_and_a_pixels_change_is_seen() -> None:
    others = noise(300)
    copies = others[[250, 3]].clone()
    copies[1, 0, 0, 0] ^= 1
    found, places = nearest(copies, others)
    assert places.tolist() == [250, 3]
    assert found.tolist() == [0.0, pytest.approx((1 / (3 * 32 * 32)) ** 0.5 / 255)]
