"""The small classifier in its three forms."""

import pytest
import torch

from fl.models import build_classifier

ImageShape = tuple[int, int, int]
GRAY, COLOR = (1, 28, 28), (3, 32, 32)
IMAGES = [(GRAY, 10), (GRAY, 47), (COLOR, 10), (COLOR, 100)]
every_form = pytest.mark.parametrize(("shape", "classes"), IMAGES)


@every_form
def test_it_returns_logits_and_no_probabilities(shape: ImageShape, classes: int) -> None:
    torch.manual_seed(0)
    logits = build_classifier("cnn", shape, classes)(torch.rand(4, *shape))
    assert logits.shape == (4, classes)
    assert (logits < 0).any()
    assert ((logits.sum(dim=1) - 1).abs() > 1e-3).all()


@every_form
def test_an_image_is_answered_alike_in_any_company_in_either_mode(
    shape: ImageShape, classes: int
) -> None:
    """So that clients train as one, and teachers are asked in batches of any size."""
    torch.manual_seed(0)
    model, images = build_classifier("cnn", shape, classes, width=0.3), torch.rand(5, *shape)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model.train()(images), alone)
    torch.testing.assert_close(model.eval()(images), alone)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 20), (1, 33, 47), (3, 8, 13), (3, 40, 9)])
def test_images_of_any_side_from_eight_on_find_a_form(shape: ImageShape) -> None:
    model = build_classifier("cnn", shape, 10, width=0.2)
    assert model(torch.rand(2, *shape)).shape == (2, 10)


@every_form
def test_every_weight_learns(shape: ImageShape, classes: int) -> None:
    torch.manual_seed(0)
    model = build_classifier("cnn", shape, classes, width=0.5)
    model(torch.rand(8, *shape)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
