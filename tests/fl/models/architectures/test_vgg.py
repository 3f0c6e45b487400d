"""VGG-9: the map that it enlarges, what it gives, and the sides that it takes."""

import pytest
import torch
from torch import Tensor, nn

from fl.models.architectures.vgg import MODEL, POOLED, VGG9


def what_is_enlarged(model: VGG9, images: Tensor) -> Tensor:
    """The map (B, C, h, w) before the last pooling, which brings it to POOLED on each side."""
    last = model.features[-1]
    assert isinstance(last, nn.AdaptiveAvgPool2d)
    return nn.Sequential(*model.features[:-1])(images)


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (64, 64), (40, 24), (8, 8)])
def test_the_map_has_the_shape_that_the_model_names(height: int, width: int) -> None:
    model = VGG9((1, height, width), 10, width=1 / 32)
    images = torch.rand(2, 1, height, width)
    assert what_is_enlarged(model, images).shape[-2:] == model.map_shape
    assert model.features(images).shape[-2:] == (POOLED, POOLED)


def test_logits_are_one_per_class() -> None:
    model = VGG9((3, 32, 32), 7, width=1 / 32)
    assert model(torch.rand(5, 3, 32, 32)).shape == (5, 7)


def test_dropout_is_on_in_training_only() -> None:
    model, images = VGG9((1, 28, 28), 10, width=1 / 32), torch.rand(3, 1, 28, 28)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize(("side", "taken"), [(7, False), (8, True)])
def test_three_poolings_need_a_side_of_eight(side: int, taken: bool) -> None:
    assert MODEL.supports((1, side, 28)) is taken
    assert MODEL.supports((1, 28, side)) is taken
