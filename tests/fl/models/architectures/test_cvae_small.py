"""CVAE-small in its forms, and the wider one for CIFAR-10."""

import pytest
import torch
from torch import Tensor

from fl.errors import UserError
from fl.models import CVAE, build_generator, check_generator, one_hot, sample

ImageShape = tuple[int, int, int]
GRAY, COLOR = (1, 28, 28), (3, 32, 32)
FORMS = [
    ("cvae-small", GRAY, 10),
    ("cvae-small", GRAY, 47),
    ("cvae-small", COLOR, 10),
    ("cvae-cifar", COLOR, 10),
]
every_form = pytest.mark.parametrize(("name", "shape", "classes"), FORMS)


def model_and_batch(
    name: str, shape: ImageShape, classes: int
) -> tuple[CVAE, tuple[Tensor, Tensor, Tensor]]:
    torch.manual_seed(0)
    model = build_generator(name, shape, classes, latent=5, width=0.2)
    return model, (torch.rand(4, *shape), torch.arange(4), torch.randn(4, 5))


@every_form
def test_only_the_form_for_cifar_encodes_without_a_look_at_the_label(
    name: str, shape: ImageShape, classes: int
) -> None:
    model, (images, labels, _) = model_and_batch(name, shape, classes)
    encoded = [model.encoder(images, one_hot(labels + k, classes))[0] for k in (0, 1)]
    assert torch.equal(*encoded) == (name == "cvae-cifar")


@every_form
def test_what_is_drawn_depends_on_both_the_code_and_the_label(
    name: str, shape: ImageShape, classes: int
) -> None:
    model, (_, labels, noise) = model_and_batch(name, shape, classes)
    drawn = sample(model.decoder, labels, noise)
    for other in (sample(model.decoder, labels + 1, noise), sample(model.decoder, labels, -noise)):
        for one, changed in zip(drawn, other, strict=True):
            assert not torch.equal(one, changed)


@every_form
def test_a_sample_is_coded_and_drawn_alike_in_any_company(
    name: str, shape: ImageShape, classes: int
) -> None:
    """So that clients train as one."""
    model, batch = model_and_batch(name, shape, classes)
    alone = [model(*(part[i : i + 1] for part in batch)) for i in range(4)]
    for whole, parts in zip(model(*batch), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(whole, torch.cat(parts))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cvae-small", (1, 4, 12)), ("cvae-small", (3, 8, 16)), ("cvae-cifar", (3, 8, 24))],
)
def test_the_smallest_images_and_oblong_ones_come_back_in_their_shape(
    name: str, shape: ImageShape
) -> None:
    model, batch = model_and_batch(name, shape, 10)
    assert model(*batch)[0].shape == (4, *shape)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cvae-small", (1, 6, 8)), ("cvae-small", (3, 12, 12)), ("cvae-cifar", (1, 32, 32))],
)
def test_images_that_halving_would_not_give_back_are_refused(name: str, shape: ImageShape) -> None:
    with pytest.raises(UserError, match=f"{name} does not take images of shape"):
        check_generator(name, shape, 10)
