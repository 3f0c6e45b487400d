"""Architectures: their papers' sizes, what they compute, and the images that they take."""

import pytest
import torch
from table2 import macs, parameters
from torch import Tensor, nn
from torchvision.models import resnet18

from fl.errors import UserError
from fl.models.architectures.normalised import Block
from fl.models.architectures.plain import POOLED, VGG9, LeNet
from fl.models.registry import build_classifier, build_generator

ImageShape = tuple[int, int, int]
GRAY, COLOR = (1, 28, 28), (3, 32, 32)
both = pytest.mark.parametrize("name", ["m1", "m2"])
plain = pytest.mark.parametrize(
    ("name", "shape"), [("cnn", GRAY), ("cnn", COLOR), ("m1", GRAY), ("m2", COLOR)]
)


@plain
def test_logits_are_one_for_each_class_and_no_probabilities(name: str, shape: ImageShape) -> None:
    torch.manual_seed(0)
    logits = build_classifier(name, shape, 7)(torch.rand(4, *shape))
    assert logits.shape == (4, 7)
    assert (logits < 0).any()
    assert ((logits.sum(dim=1) - 1).abs() > 1e-3).all()


@plain
def test_an_image_is_answered_alike_in_any_company_in_either_mode(
    name: str, shape: ImageShape
) -> None:
    """So that clients train as one, and teachers are asked in batches of any size."""
    torch.manual_seed(0)
    model, images = build_classifier(name, shape, 10, width=0.5), torch.rand(5, *shape)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model.train()(images), alone)
    torch.testing.assert_close(model.eval()(images), alone)


@plain
def test_every_weight_learns(name: str, shape: ImageShape) -> None:
    torch.manual_seed(0)
    model = build_classifier(name, shape, 10)
    model(torch.rand(8, *shape)).square().sum().backward()
    for weight, parameter in model.named_parameters():
        assert parameter.grad is not None, weight
        assert parameter.grad.any(), weight


@pytest.mark.parametrize(
    ("name", "least"),
    [("cnn", 8), ("m1", 8), ("m2", 8), ("resnet18", 8), ("vgg9", 8), ("lenet5", 16)],
)
def test_images_of_any_side_from_its_least_on_are_answered(name: str, least: int) -> None:
    for shape in ((1, least, least), (1, 33, 45), (3, least, 23)):
        model = build_classifier(name, shape, 7, width=0.1)
        assert model(torch.rand(2, *shape)).shape == (2, 7)
    for shape in ((1, least - 1, 28), (1, 28, least - 1)):
        with pytest.raises(UserError, match=rf"{name} does not take .* sides of at least {least}"):
            build_classifier(name, shape, 10)


def test_lenet5s_parameters_are_those_of_28_pixels() -> None:
    counts = [p.numel() for p in build_classifier("lenet5", GRAY, 10).parameters()]
    assert counts == [150, 6, 2400, 16, 256 * 120, 120, 120 * 84, 84, 840, 10]
    assert sum(counts) == 44_426


# Parameters as the reference sheet and FedAF's Appendix C have them; millions of MACs.
SHEET = [
    ("convnet", (3, 32, 32), 10, 320_010, "50.7"),
    ("convnet", (3, 32, 32), 100, 504_420, "50.9"),
    ("convnet", (1, 28, 28), 10, 317_706, "48.4"),
    ("convnet", (3, 64, 64), 10, 381_450, "203.0"),
    ("resnet18", (3, 32, 32), 10, 11_181_642, "37.0"),
]


@pytest.mark.parametrize(("name", "shape", "classes", "size", "millions"), SHEET)
def test_sizes_are_those_of_the_sheet(
    name: str, shape: ImageShape, classes: int, size: int, millions: str
) -> None:
    with torch.device("meta"):
        model = build_classifier(name, shape, classes).eval()
        assert parameters(model) == size
        assert f"{macs(model, torch.empty(1, *shape)) / 1e6:.1f}" == millions


def test_with_instance_normalisation_an_image_does_not_see_the_others_in_its_batch() -> None:
    images = torch.rand(3, 3, 32, 32)
    model = build_classifier("convnet-instance", COLOR, 10)
    assert parameters(model) == 320_010  # HFLDD's Section VI-A, for CINIC-10
    assert not list(model.buffers())
    assert torch.allclose(model(images)[1], model(images[1:2])[0], atol=1e-5)
    normal = model.features[:2](images)
    assert torch.allclose(normal.mean((2, 3)), torch.zeros(3, 128), atol=1e-5)


@pytest.mark.parametrize(("width", "size"), [(1.0, 1_184_426), (0.926, 1_018_315)])
def test_hfldd_cnns_parameters(width: float, size: int) -> None:
    """The paper has 1,020,160; a width of 0.926 comes within a fifth of a percent."""
    with torch.device("meta"):
        model = build_classifier("hfldd-cnn", COLOR, 10, width=width)
    assert parameters(model) == size
    assert build_classifier("hfldd-cnn", GRAY, 7, width=0.1)(torch.rand(2, *GRAY)).shape == (2, 7)
    with pytest.raises(UserError, match="sides of at least 16"):
        build_classifier("hfldd-cnn", (1, 15, 15), 7)


def layers(model: nn.Module) -> list[nn.Module]:
    """Those with weights, in their order."""
    return [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "sizes", "total"),
    [
        ("m1", COLOR, 10, [224, 1168, 4640, 16_416, 528, 170], 23_146),
        ("m1", GRAY, 10, [80, 1168, 4640, 9248, 528, 170], 15_834),
        ("m2", GRAY, 62, [160, 9280, 73_856, 147_584, 4128, 2046], 237_054),
        ("m2", COLOR, 100, [448, 9280, 73_856, 262_272, 4128, 3300], 353_284),
    ],
)
def test_parameters_of_each_layer_of_fedd2ss_models(
    name: str, shape: ImageShape, classes: int, sizes: list[int], total: int
) -> None:
    with torch.device("meta"):
        model = build_classifier(name, shape, classes)
    assert [parameters(layer) for layer in layers(model)] == sizes
    assert parameters(model) == total


@both
def test_every_layer_but_the_last_has_an_activation(name: str) -> None:
    model = build_classifier(name, GRAY, 10)
    assert isinstance(model, LeNet)
    kinds = [type(m) for m in model.modules() if not list(m.children())]
    block = [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    assert kinds == [*block * 3, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    images = torch.rand(4, *GRAY)
    assert torch.equal(model(images), model.classifier(model.features(images).flatten(1)))


@pytest.mark.slow
def test_resnet18_computes_what_torchvisions_does() -> None:
    torch.manual_seed(0)
    ours, theirs = build_classifier("resnet18", COLOR, 10), resnet18(num_classes=10)
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


def what_is_enlarged(model: VGG9, images: Tensor) -> Tensor:
    """The map (B, C, h, w) before the last pooling, which brings it to POOLED on each side."""
    last = model.features[-1]
    assert isinstance(last, nn.AdaptiveAvgPool2d)
    return nn.Sequential(*model.features[:-1])(images)


@pytest.mark.parametrize(("height", "width"), [(28, 28), (64, 64), (40, 24), (8, 8)])
def test_vgg9s_map_has_the_shape_that_the_model_names(height: int, width: int) -> None:
    model = VGG9((1, height, width), 10, width=1 / 32)
    images = torch.rand(2, 1, height, width)
    assert what_is_enlarged(model, images).shape[-2:] == model.map_shape
    assert model.features(images).shape[-2:] == (POOLED, POOLED)


FORMS = [
    ("cvae-small", GRAY, 10),
    ("cvae-small", GRAY, 47),
    ("cvae-small", COLOR, 10),
    ("cvae-cifar", COLOR, 10),
    ("cvae-large", GRAY, 10),
    ("cvae-small", (1, 4, 12), 10),
    ("cvae-small", (3, 8, 16), 10),
    ("cvae-cifar", (3, 8, 24), 10),
    ("cvae-large", (3, 16, 8), 10),
]


@pytest.mark.parametrize(("name", "shape", "classes"), FORMS)
def test_a_sample_is_coded_and_drawn_alike_in_any_company(
    name: str, shape: ImageShape, classes: int
) -> None:
    """So that clients train as one."""
    torch.manual_seed(0)
    model = build_generator(name, shape, classes, latent=5, width=0.2)
    batch = (torch.rand(4, *shape), torch.arange(4), torch.randn(4, 5))
    assert (model.latent, model.num_classes, model.image_shape) == (5, classes, shape)
    assert [part.shape for part in model(*batch)] == [(4, *shape), (4, 5), (4, 5)]
    alone = [model(*(part[i : i + 1] for part in batch)) for i in range(4)]
    for whole, parts in zip(model(*batch), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(whole, torch.cat(parts))
