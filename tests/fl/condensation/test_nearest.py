"""Distances to the nearest image: against the plain formula, and exactly 0 for copies."""

import pytest
import torch

from fl.condensation.nearest import nearest


def images(count: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


def test_distances_are_those_of_the_plain_formula() -> None:
    ours, others = images(6), images(9, seed=1)
    found, places = nearest(ours, others)
    for image, distance, place in zip(ours, found.tolist(), places.tolist(), strict=True):
        plain = [
            float((image.float() / 255 - other.float() / 255).square().mean().sqrt())
            for other in others
        ]
        assert distance == pytest.approx(min(plain), rel=1e-5)
        assert place == plain.index(min(plain))


def test_a_copy_among_many_has_a_distance_of_0_and_a_pixels_change_is_seen() -> None:
    others = images(300)
    copies = others[[250, 3]].clone()
    copies[1, 0, 0, 0] ^= 1
    found, places = nearest(copies, others)
    assert places.tolist() == [250, 3]
    assert found.tolist() == [0.0, pytest.approx((1 / (3 * 32 * 32)) ** 0.5 / 255)]
