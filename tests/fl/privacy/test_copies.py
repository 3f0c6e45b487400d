"""Images against training and test images: copies are told from new ones."""

import torch

from fl.condensation.nearest import as_bytes
from fl.privacy.measure import copies


def test_copies_are_at_distance_zero_and_strangers_are_even() -> None:
    draws = torch.Generator().manual_seed(0)
    train, test, new = (
        torch.randint(0, 256, (60, 1, 6, 6), generator=draws, dtype=torch.uint8) for _ in range(3)
    )
    copied = copies(train[:20], train, test)
    assert (copied.to_train, copied.ratio, copied.nearer) == (0, 0, 1)
    fresh = copies(new, train, test)
    assert 0.95 < fresh.ratio < 1.05
    assert 0.3 < fresh.nearer < 0.7


def test_floats_become_bytes() -> None:
    assert as_bytes(torch.tensor([-1.0, 0.5, 2.0])).tolist() == [0, 128, 255]
