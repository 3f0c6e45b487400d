"""HFLDD's classifier for CIFAR-10, and how far it is from the paper's size."""

import pytest
import torch
from cost import parameters

from fl.errors import UserError
from fl.models import build_classifier


@pytest.mark.parametrize(("width", "size"), [(1.0, 1_184_426), (0.926, 1_018_315)])
def test_parameters(width: float, size: int) -> None:
    """The paper has 1,020,160; a width of 0.926 comes within a fifth of a percent."""
    with torch.device("meta"):
        model = build_classifier("hfldd-cnn", (3, 32, 32), 10, width=width)
    assert parameters(model) == size


def test_it_takes_small_gray_images_and_no_smaller_ones() -> None:
    model = build_classifier("hfldd-cnn", (1, 28, 28), 7, width=0.1)
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 7)
    with pytest.raises(UserError, match="sides of at least 16"):
        build_classifier("hfldd-cnn", (1, 15, 15), 7)
