"""ConvNet and ResNet-18: their sizes, and what they compute."""

import pytest
import torch
from torchvision.models import resnet18

from fl.models import build_classifier
from fl.models.cost import macs, parameters

# Parameters as the reference sheet and FedAF's Appendix C have them; millions of MACs.
SHEET = [
    ("convnet", (3, 32, 32), 10, 320_010, "50.7"),
    ("convnet", (3, 32, 32), 100, 504_420, "50.9"),
    ("convnet", (1, 28, 28), 10, 317_706, "48.4"),
    ("convnet", (3, 64, 64), 10, 381_450, "203.0"),
    ("resnet18", (3, 32, 32), 10, 11_181_642, "37.0"),
]


@pytest.mark.parametrize(("name", "shape", "classes", "size", "millions"), SHEET)
def test_sizes(name, shape, classes, size, millions) -> None:
    with torch.device("meta"):
        model = build_classifier(name, shape, classes).eval()
        assert parameters(model) == size
        assert f"{macs(model, torch.empty(1, *shape)) / 1e6:.1f}" == millions


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
