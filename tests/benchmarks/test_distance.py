"""The distance benchmark: its procedures keep the same samples, its figures are what they say."""

import distance
import pytest
from torch import Tensor


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], Tensor]:
    """Inputs that take turns, of a few thousand bytes instead of a gigabyte."""
    monkeypatch.setattr(distance, "ROTATION", 4 * 60 * 5 * 3)
    return distance.draw((60, 5, 3), "cpu")


def test_all_procedures_keep_the_same_samples(small: tuple[list[Tensor], Tensor]) -> None:
    inputs, labels = small
    expected = distance.kernel("reference")(inputs[0], labels, 3).indices.tolist()  # type: ignore[attr-defined]
    assert len(expected) == 3 * 16
    found = distance.kernel("torch")(inputs[0], labels, 3)
    assert found.indices.tolist() == expected  # type: ignore[attr-defined]
    for peer in (distance.released_procedure, distance.cdist_loop):
        assert sorted(peer(inputs[0], labels, 3).tolist()) == expected  # type: ignore[attr-defined]
