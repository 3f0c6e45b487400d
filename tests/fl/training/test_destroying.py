"""Destroyed images against plain loops over their pixels."""

import math

import torch
from torch import Tensor

from fl.training.destroying import DRAWS, destroyed

CROP, BLUR, ERASE, CUT, TURN = 0, 1, 2, (3, 5), (4, 6)


def naive_destroyed(x: Tensor, noise: Tensor) -> Tensor:
    """One image (C, H, W), pixel by pixel."""
    u = [math.modf(64 * float(z))[0] % 1 for z in noise]
    kind, (height, width), found = int(7 * u[0]), x.shape[1:], x.clone()
    for i in range(height):
        for j in range(width):
            if kind == CROP:
                area, ratio = 0.1 + 0.23 * u[1], 0.75 + 7 / 12 * u[2]
                tall, wide = math.sqrt(area * ratio), math.sqrt(area / ratio)
                row = int(u[3] * (height - tall * height) + (i + 0.5) * tall)
                found[:, i, j] = x[:, row, int(u[4] * (width - wide * width) + (j + 0.5) * wide)]
            if kind == BLUR:
                far, near = 1 + int(4 * u[1]), int(3 * u[2])
                up, aside = (far, near) if u[3] < 0.5 else (near, far)
                rows = [min(abs(r), 2 * height - 2 - r) for r in range(i - up, i + up + 1)]
                own = [min(abs(c), 2 * width - 2 - c) for c in range(j - aside, j + aside + 1)]
                found[:, i, j] = x[:, rows][:, :, own].mean((1, 2))
            if kind == ERASE:
                area, ratio = (2 + u[1]) / 6, 0.3 + 3 * u[2]
                tall = min(1, math.sqrt(area * ratio))
                wide = min(1, area / tall)
                top, left = u[3] * (1 - tall) * height, u[4] * (1 - wide) * width
                if top <= i < top + tall * height and left <= j < left + wide * width:
                    found[:, i, j] = 0
    half = height // 2  # of a square
    if kind in CUT:
        x, into = (x, found) if u[4] < 0.5 else (x.mT, found.mT)
        to = int(half * u[1])
        allowed = [p for p in range(half) if abs(p - to) >= half // 2]
        taken = allowed[int(len(allowed) * u[2])]
        if u[3] < 1 / 3:
            into[:, :half], into[:, half:] = x[:, half:], x[:, :half]
        else:
            into[:, to : to + half] = x[:, taken : taken + half]
    if kind in TURN:
        top = int(half * u[1])
        for left in (0, half):
            square = x[:, top : top + half, left : left + half]
            found[:, top : top + half, left : left + half] = square.rot90(1 + int(3 * u[2]), (1, 2))
    return found


def test_an_outlier_is_that_of_plain_loops_over_its_pixels() -> None:
    stream = torch.Generator().manual_seed(1)
    images = torch.rand(60, 2, 12, 12, generator=stream)
    noise = torch.randn(60, DRAWS, generator=stream)
    found = destroyed(images, noise)
    assert {int(7 * float(u)) for u in (64 * noise[:, 0]) % 1} == set(range(7))
    for x, z, own in zip(images, noise, found, strict=True):
        torch.testing.assert_close(own, naive_destroyed(x, z), rtol=1e-5, atol=1e-5)
    alone = [destroyed(images[k : k + 1], noise[k : k + 1]) for k in range(len(images))]
    assert torch.equal(torch.cat(alone), found)


def test_sides_may_be_odd_and_differ() -> None:
    stream = torch.Generator().manual_seed(2)
    images = torch.rand(60, 1, 9, 14, generator=stream)
    found = destroyed(images, torch.randn(60, DRAWS, generator=stream))
    assert found.shape == images.shape
    assert float(found.min()) >= 0
    assert not any(torch.equal(*pair) for pair in zip(found, images, strict=True))
