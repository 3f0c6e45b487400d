"""LeNet-5's parameters, and the images it takes."""

import pytest
import torch

from fl.errors import UserError
from fl.models import build_classifier


def test_its_parameters_are_those_of_28_pixels() -> None:
    model = build_classifier("lenet5", (1, 28, 28), 10)
    counts = [p.numel() for p in model.parameters()]
    assert counts == [150, 6, 2400, 16, 256 * 120, 120, 120 * 84, 84, 840, 10]
    assert sum(counts) == 44_426
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 16, 16), (1, 16, 24)])
def test_other_sizes(shape: tuple[int, int, int]) -> None:
    assert build_classifier("lenet5", shape, 7, width=0.5)(torch.rand(3, *shape)).shape == (3, 7)


def test_small_images_are_refused() -> None:
    with pytest.raises(UserError, match="sides of at least 16"):
        build_classifier("lenet5", (1, 15, 28), 10)
