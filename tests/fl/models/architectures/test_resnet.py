"""ResNet-18: its size, and that what it computes is torchvision's."""

import pytest
import torch
from cost import macs, parameters
from torchvision.models import resnet18

from fl.models import build_classifier
from fl.models.architectures.resnet import Block


def test_its_size_is_the_reference_sheets() -> None:
    with torch.device("meta"):
        model = build_classifier("resnet18", (3, 32, 32), 10).eval()
        assert parameters(model) == 11_181_642
        assert f"{macs(model, torch.empty(1, 3, 32, 32)) / 1e6:.1f}" == "37.0"


@pytest.mark.slow
def test_resnet18_computes_what_torchvisions_does() -> None:
    torch.manual_seed(0)
    ours, theirs = build_classifier("resnet18", (3, 32, 32), 10), resnet18(num_classes=10)
    # Both name their layers in the order of the forward pass, but for the shortcuts.
    names = [n for n in theirs.state_dict() if "downsample" not in n]
    shortcuts = [n for n in theirs.state_dict() if "downsample" in n]
    own = [n for n in ours.state_dict() if "shortcut" not in n]
    own_shortcuts = [n for n in ours.state_dict() if "shortcut" in n]
    pairs = [*zip(own, names, strict=True), *zip(own_shortcuts, shortcuts, strict=True)]
    ours.load_state_dict({mine: theirs.state_dict()[other] for mine, other in pairs})
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(ours.train()(images), theirs.train()(images))
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images))


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 33, 45)])
def test_images_of_any_side_from_eight_on_are_answered(shape: tuple[int, int, int]) -> None:
    model = build_classifier("resnet18", shape, 7, width=0.05)
    assert model(torch.rand(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("stride", "sides"), [(1, (9, 6)), (2, (5, 3))])
def test_a_block_with_nothing_to_add_passes_on_its_shortcut(
    stride: int, sides: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    block, x = Block(3, 3, stride).eval(), torch.randn(2, 3, 9, 6)
    torch.nn.init.zeros_(block.residual[4].weight)
    out = block(x)
    assert out.shape == (2, 3, *sides)
    assert torch.equal(out, block.shortcut(x).relu())
    assert torch.equal(block.shortcut(x), x) == (stride == 1)
