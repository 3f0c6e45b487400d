"""ConvNet: its sizes on the images of the papers."""

import pytest
import torch
from cost import macs, parameters

from fl.models import build_classifier

# Parameters as the reference sheet and FedAF's Appendix C have them; millions of MACs.
SHEET = [
    ((3, 32, 32), 10, 320_010, "50.7"),
    ((3, 32, 32), 100, 504_420, "50.9"),
    ((1, 28, 28), 10, 317_706, "48.4"),
    ((3, 64, 64), 10, 381_450, "203.0"),
]


@pytest.mark.parametrize(("shape", "classes", "size", "millions"), SHEET)
def test_sizes(shape: tuple[int, int, int], classes: int, size: int, millions: str) -> None:
    with torch.device("meta"):
        model = build_classifier("convnet", shape, classes).eval()
        assert parameters(model) == size
        assert f"{macs(model, torch.empty(1, *shape)) / 1e6:.1f}" == millions


def test_with_instance_normalisation_an_image_does_not_see_the_others_in_its_batch() -> None:
    images = torch.rand(3, 3, 32, 32)
    model = build_classifier("convnet-instance", (3, 32, 32), 10)
    assert parameters(model) == 320_010  # HFLDD's Section VI-A, for CINIC-10
    assert not list(model.buffers())
    assert torch.allclose(model(images)[1], model(images[1:2])[0], atol=1e-5)
    normal = model.features[:2](images)
    assert torch.allclose(normal.mean((2, 3)), torch.zeros(3, 128), atol=1e-5)
