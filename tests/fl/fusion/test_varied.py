"""Decoders with a longer code: what each part of it does to the image."""

import pytest
import torch
from torch import Tensor, nn

from fl.fusion.voting import MOTION, VariedDecoder, moved
from fl.models import Decoder
from tests.fl.toy import CPU

Z, CLASSES, SIDE = 2, 3, 12


def decoder() -> Decoder:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(Z + CLASSES, SIDE**2), nn.Unflatten(1, (1, SIDE, SIDE)))
    return Decoder(layers, latent=Z, num_classes=CLASSES)


def code(latent: int, count: int = 5) -> Tensor:
    return torch.randn(count, latent, generator=torch.Generator(CPU).manual_seed(1))


LABELS = torch.eye(CLASSES)[[0, 1, 2, 0, 1]]


def test_unmoved_it_draws_what_the_plain_decoder_draws() -> None:
    varied = VariedDecoder(decoder(), warp=0.0)
    z = code(varied.latent)
    assert z.shape[1] == Z + MOTION
    torch.testing.assert_close(varied(z, LABELS), decoder()(z[:, :Z], LABELS))


def test_another_strength_moves_the_same_images() -> None:
    still, moving = (VariedDecoder(decoder(), warp=w) for w in (0.0, 1.0))
    z = code(still.latent)
    expected = moved(still(z, LABELS).sigmoid(), z[:, Z:], 1.0)
    torch.testing.assert_close(moving(z, LABELS).sigmoid(), expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(expected, still(z, LABELS).sigmoid(), atol=1e-2)


def test_a_mixed_label_takes_the_place_of_the_label() -> None:
    varied = VariedDecoder(decoder(), warp=0.0, spread=1.5, mixing=2.0)
    z = code(varied.latent)
    assert z.shape[1] == Z + CLASSES + MOTION
    mixture = (2.0 * z[:, Z : Z + CLASSES]).softmax(1)
    torch.testing.assert_close(varied(z, LABELS), decoder()(1.5 * z[:, :Z], mixture))
    assert torch.equal(varied(z, LABELS), varied(z, LABELS.flip(0)))


def test_a_sample_does_not_depend_on_the_others() -> None:
    varied = VariedDecoder(decoder(), warp=1.0, mixing=2.0)
    z = code(varied.latent)
    alone = torch.cat([varied(z[[i]], LABELS[[i]]) for i in range(len(z))])
    torch.testing.assert_close(varied(z, LABELS), alone)


@pytest.mark.parametrize(("number", "axis"), [(4, 3), (5, 2)])
def test_shifts_are_a_twentieth_of_a_side_at_most(number: int, axis: int) -> None:
    image = torch.zeros(1, 1, 40, 40)
    image[..., 18:22, 18:22] = 1
    motion = torch.zeros(1, MOTION)
    motion[0, number] = 9.0
    place = torch.arange(40.0)

    def middle(x: Tensor) -> float:
        along = x.sum((0, 1, 5 - axis))
        return float((along * place).sum() / along.sum())

    assert middle(moved(image, motion, 1.0)) - middle(image) == pytest.approx(-2, abs=0.01)
    assert middle(moved(image, motion, 0.5)) - middle(image) == pytest.approx(-1, abs=0.01)


def test_no_motion_and_no_strength_leave_images_as_they_are() -> None:
    images = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(moved(images, torch.zeros(3, MOTION), 1.0), images)
    torch.testing.assert_close(moved(images, code(MOTION, 3), 0.0), images)


def test_what_comes_in_is_the_borders_pixel() -> None:
    white = torch.ones(4, 1, 8, 8)
    torch.testing.assert_close(moved(white, code(MOTION, 4), 2.0), white)
