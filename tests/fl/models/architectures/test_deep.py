"""Table 9's deep classifiers: torchvision's parameters, with a stem for small images."""

import pytest
import torch
from table2 import parameters
from torch import nn
from torchvision import models

from fl.models.registry import build_classifier

ORIGINALS = {
    "efficientnet-v2": models.efficientnet_v2_s,
    "resnet50": models.resnet50,
    "mobilenet-v2": models.mobilenet_v2,
    "shufflenet-v2": models.shufflenet_v2_x1_0,
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_only_the_stem_differs_from_the_original(name: str) -> None:
    def shapes(model: nn.Module) -> list[tuple[int, ...]]:
        return sorted(tuple(p.shape) for p in model.parameters())

    with torch.device("meta"):
        ours = shapes(build_classifier(name, (3, 32, 32), 1000))
        theirs = shapes(ORIGINALS[name]())
    odd = [shape for shape in theirs if shape not in ours]
    assert odd == ([(64, 3, 7, 7)] if name == "resnet50" else [])
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_stem_keeps_the_size_and_the_strides_leave_two_pixels_or_four(name: str) -> None:
    sides: list[int] = []
    model = build_classifier(name, (1, 28, 28), 10, width=0.1)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda _, inputs, output: sides.append(output.shape[-1]))
    model.eval()(torch.rand(1, 1, 28, 28))
    sides = [side for side in sides if side > 1]  # squeeze and excitation work on one pixel
    assert sides[0] == 28
    assert sides[-1] == (4 if name in ("resnet50", "shufflenet-v2") else 2)


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_batch_of_one_can_be_trained_on_and_no_layer_draws_by_itself(name: str) -> None:
    model = build_classifier(name, (1, 28, 28), 10, width=0.1).train()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    image, before = torch.rand(1, 1, 28, 28), torch.random.get_rng_state()
    model(image).sum().backward()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ORIGINALS)
def test_width_scales_and_color_images_fit(name: str) -> None:
    with torch.device("meta"):
        narrow, wide = (build_classifier(name, (3, 32, 32), 7, width=w) for w in (0.25, 0.5))
        assert wide(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert parameters(narrow) < parameters(wide) / 2
