"""An image's warp depends on the image alone, moves what it should, and can be left out."""

import pytest
import torch

from fl.fusion.warping import Warp


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    stream = torch.Generator().manual_seed(0)
    return (torch.rand(40, 1, 28, 28, generator=stream) * 2**18).round() / 2**18


def test_an_image_is_warped_the_same_beside_whatever_others(images: torch.Tensor) -> None:
    warp = Warp(seed=3)
    alone = torch.cat([warp(image[None]) for image in images.flip(0)]).flip(0)
    assert torch.equal(warp(images), alone)


def test_images_are_warped_each_in_its_own_way_and_by_the_seed(images: torch.Tensor) -> None:
    maps = Warp(seed=3).maps(images)
    assert len({tuple(m.flatten().tolist()) for m in maps}) == len(images)
    assert not torch.equal(maps, Warp(seed=4).maps(images))


def test_amounts_are_spread_over_their_ranges(images: torch.Tensor) -> None:
    shifts = Warp(seed=0, shift=0.1, degrees=0, scale=0, shear=0).maps(images)[:, :, 2]
    assert shifts.abs().max() <= 0.2  # the side is from -1 to 1
    assert shifts.min() < -0.1
    assert shifts.max() > 0.1


def test_a_map_without_its_parts_is_none(images: torch.Tensor) -> None:
    still = Warp(seed=0, degrees=0, shift=0, scale=0, shear=0)
    torch.testing.assert_close(still(images), images, atol=1e-5, rtol=0)
    assert Warp(seed=0, strength=0)(images) is images


def test_a_shift_moves_a_dot(images: torch.Tensor) -> None:
    dot = torch.zeros(1, 1, 29, 29)
    dot[0, 0, 14, 14] = 1
    warp = Warp(seed=1, degrees=0, shift=0.2, scale=0, shear=0)
    x, y = warp.maps(dot)[0, :, 2]
    moved = warp(dot)[0, 0]
    row, column = divmod(int(moved.argmax()), 29)
    assert (column - 14, row - 14) == (round(-x.item() * 14.5), round(-y.item() * 14.5))
    assert moved.sum() == pytest.approx(1, abs=1e-4)


def test_strength_is_a_factor_on_the_map(images: torch.Tensor) -> None:
    shifts = [Warp(seed=0, strength=s).maps(images)[:, :, 2] for s in (0.5, 1.0)]
    torch.testing.assert_close(2 * shifts[0], shifts[1])
