"""The generator at the server of DENSE and Co-Boosting."""

import pytest
import torch
from table2 import parameters
from torch import nn

from fl.errors import UserError
from fl.fusion.inversion import DEVIATION, ImageGenerator, check_image_generator

ImageShape = tuple[int, int, int]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 8, 64), (1, 4, 4)])
def test_images_have_their_shape_and_pixels_from_zero_to_one(shape: ImageShape) -> None:
    torch.manual_seed(0)
    generator = ImageGenerator(shape, latent=6, width=0.1)
    images = generator(10 * torch.randn(3, 6))
    assert images.shape == (3, *shape)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std() > 0


@pytest.mark.parametrize("shape", [(1, 30, 28), (3, 32, 33), (1, 2, 2)])
def test_sides_that_two_doublings_cannot_make_are_refused_before_anything_is_built(
    shape: ImageShape,
) -> None:
    for refusing in (check_image_generator, ImageGenerator):
        with pytest.raises(UserError, match=r"sides divisible by 4, got \("):
            refusing(shape)


def test_its_size_is_that_of_the_released_codes_layers() -> None:
    """A linear layer, two 3x3 convolutions without and one with biases, three BatchNorms."""
    with torch.device("meta"):
        found = parameters(ImageGenerator((3, 32, 32)))
    linear = 256 * 128 * 64 + 128 * 64
    convolutions = 9 * (128 * 128 + 128 * 64) + 9 * 64 * 3 + 3
    norms = 2 * (128 + 128 + 64)
    assert found == linear + convolutions + norms


def test_width_multiplies_channels() -> None:
    with torch.device("meta"):
        sizes = [parameters(ImageGenerator((1, 28, 28), width=w)) for w in (0.1, 0.25, 0.5, 1.0)]
    assert sizes == sorted(set(sizes))


def test_weights_start_around_zero_and_norms_around_one_as_gans_do() -> None:
    torch.manual_seed(0)
    for layer in ImageGenerator((3, 32, 32), latent=64).modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert layer.weight.mean().item() == pytest.approx(0, abs=0.1 * DEVIATION)
            assert layer.weight.std().item() == pytest.approx(DEVIATION, rel=0.05)
            assert layer.bias is None or not layer.bias.any()
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.weight.mean().item() == pytest.approx(1, abs=0.5 * DEVIATION)
            assert layer.weight.std().item() == pytest.approx(DEVIATION, rel=0.3)


def test_the_start_comes_from_torchs_stream() -> None:
    def start(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return ImageGenerator((1, 8, 8), latent=3, width=0.1)(torch.ones(2, 3))

    assert torch.equal(start(0), start(0))
    assert not torch.equal(start(0), start(1))
