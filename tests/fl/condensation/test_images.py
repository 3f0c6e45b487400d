"""Augmentations: the same for both batches, and gradients pass."""

import pytest
import torch
import torch.nn.functional as F

from fl.condensation.images import KINDS, draw_augmentation, sampled


@pytest.mark.parametrize("kind", KINDS)
def test_both_batches_meet_the_same_function_and_gradients_pass(kind: str) -> None:
    stream = torch.Generator().manual_seed(5)
    change = draw_augmentation([kind], stream)
    images = torch.rand(2, 3, 8, 8, generator=stream).requires_grad_()
    changed = change(images)
    assert changed.shape == images.shape
    if kind != "flip":  # half of the time it leaves them
        assert not torch.equal(changed, images)
    torch.testing.assert_close(change(images[1:]), changed[1:])
    changed.sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_one_kind_is_drawn_at_a_time_and_none_changes_nothing() -> None:
    images = torch.rand(1, 1, 8, 8)
    assert draw_augmentation([], torch.Generator())(images) is images
    stream = torch.Generator().manual_seed(0)
    flips = [draw_augmentation(["flip"], stream)(images) for _ in range(20)]
    mirrored = [torch.equal(found, images.flip(3)) for found in flips]
    assert 0 < sum(mirrored) < 20


@pytest.mark.parametrize("kind", ["shift", "scale", "rotate"])
def test_the_way_that_repeats_on_gpus_comes_to_the_same_images_and_gradients(kind: str) -> None:
    """Sides of unequal length, and strengths at which pixels come from outside."""
    matrix = {
        "shift": [[1, 0, 0.25], [0, 1, -0.25]],
        "scale": [[1.2, 0, 0], [0, 0.9, 0]],
        "rotate": [[0.966, -0.259, 0], [0.259, 0.966, 0]],
    }[kind]
    images = torch.rand(2, 3, 6, 9, generator=torch.Generator().manual_seed(1)).requires_grad_()
    grid = F.affine_grid(torch.tensor([matrix]).expand(2, 2, 3), [2, 3, 6, 9], align_corners=False)
    expected = F.grid_sample(images, grid, align_corners=False)
    found = sampled(images, grid[0])
    torch.testing.assert_close(found, expected)
    weights = torch.rand(expected.shape)
    gradients = [
        torch.autograd.grad((each * weights).sum(), images)[0] for each in (found, expected)
    ]
    torch.testing.assert_close(*gradients)
