"""Images made from classifiers: each term of the loss against arithmetic by hand."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fl.federation import RunSpec
from fl.fusion.distillation import kl_to_teacher
from fl.fusion.inversion import (
    BatchNormDistance,
    InversionConfig,
    boundary_support,
    crop_and_flip,
    invert,
)

PROBLEM = RunSpec(image_shape=(1, 8, 8), num_classes=3, seed=0)
SMALL = InversionConfig(batch_size=6, steps=5, width=0.05, latent=4)
CPU = torch.device("cpu")


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_kl_is_the_sum_over_classes_of_each_sample(temperature: float) -> None:
    student, teacher = torch.randn(2, 5, 4, generator=stream())
    for row, s, t in zip(
        kl_to_teacher(student, teacher, temperature), student, teacher, strict=True
    ):
        p = [math.exp(v / temperature) for v in s]
        q = [math.exp(v / temperature) for v in t]
        p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
        kl = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
        assert row.item() == pytest.approx(temperature**2 * kl, rel=1e-4, abs=1e-6)


def test_only_samples_on_which_the_two_disagree_support_the_boundary() -> None:
    teacher = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    expected = -kl_to_teacher(student[1:2], teacher[1:2]).item() / 3  # a mean over all samples
    assert boundary_support(student, teacher).item() == pytest.approx(expected)


def test_each_view_is_the_image_shifted_over_black_and_maybe_mirrored() -> None:
    images = torch.rand(40, 2, 6, 6, generator=stream()) + 0.1
    views = crop_and_flip(images, stream(1), padding=2)
    seen = set()
    for image, view in zip(images, views, strict=True):
        padded = torch.zeros(2, 10, 10)
        padded[:, 2:8, 2:8] = image
        cuts = {
            (top, left, mirrored): cut.flip(2) if mirrored else cut
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
            for cut in [padded[:, top : top + 6, left : left + 6]]
        }
        (found,) = [where for where, cut in cuts.items() if torch.equal(cut, view)]
        seen.add(found)
    assert len(seen) > 20
    assert {mirrored for *_, mirrored in seen} == {False, True}


def test_views_can_be_differentiated() -> None:
    images = torch.rand(2, 1, 6, 6, generator=stream(), requires_grad=True)
    crop_and_flip(images, stream(1), padding=0).sum().backward()
    torch.testing.assert_close(images.grad, torch.ones(2, 1, 6, 6))


class Normed(nn.Sequential):
    def __init__(self, seed: int) -> None:
        super().__init__(nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2))
        for layer in (self[0], self[2]):
            layer.running_mean = torch.rand(2, generator=stream(seed))
            layer.running_var = torch.rand(2, generator=stream(seed + 1)) + 0.5
        self.eval()


def test_batchnorm_distance_is_summed_over_layers_and_averaged_over_models() -> None:
    models = nn.ModuleList([Normed(0), Normed(5)])
    x = torch.randn(4, 2, 3, 3, generator=stream())
    expected = 0.0
    for model in models:
        inputs = (x, torch.relu(model[0](x).detach()))
        for layer, values in zip((model[0], model[2]), inputs, strict=True):
            for running, own in (
                (layer.running_mean, [values[:, c].mean() for c in range(2)]),
                (layer.running_var, [values[:, c].var(correction=0) for c in range(2)]),
            ):
                expected += math.sqrt(sum((a - b) ** 2 for a, b in zip(running, own, strict=True)))
    with BatchNormDistance(models).watching() as statistics:
        for model in models:
            model(torch.zeros_like(x))  # of several batches the last counts
            model(x)
        assert statistics.value.item() == pytest.approx(expected / 2, rel=1e-5)
    models[0](x + 1)  # is measured no more
    assert statistics.value.item() == pytest.approx(expected / 2, rel=1e-5)


def test_models_without_batchnorm_have_no_distance() -> None:
    with BatchNormDistance(nn.ModuleList([nn.Linear(2, 2)])).watching() as statistics:
        assert statistics.value.item() == 0


def test_the_images_of_the_lowest_loss_are_kept() -> None:
    made: list[tuple[float, Tensor]] = []

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        # Falls in the second step and rises again, nearly whatever the images are.
        value = (3.0, 1.0, 2.0, 4.0, 5.0)[len(made)] + images.mean() / 1000
        made.append((value.item(), images.detach().clone()))
        return value

    images, labels = invert(loss, PROBLEM, SMALL, epoch=1, device=CPU)
    assert torch.equal(images, made[1][1])
    assert images.shape == (6, 1, 8, 8)
    assert labels.shape == (6,)


def test_inversion_brings_the_loss_down() -> None:
    values: list[float] = []

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        wanted = labels.float() / 3
        value = ((images.mean((1, 2, 3)) - wanted) ** 2).mean()
        values.append(value.item())
        return value

    config = InversionConfig(batch_size=12, steps=60, width=0.2, latent=8, lr=1e-2)
    invert(loss, PROBLEM, config, epoch=1, device=CPU)
    assert min(values) < values[0] / 3
    assert any(a != b for a, b in pairwise(values))


def test_every_epoch_has_a_generator_of_its_own_that_follows_from_the_seed() -> None:
    def images(epoch: int) -> Tensor:
        return invert(lambda x, y: x.mean(), PROBLEM, SMALL, epoch=epoch, device=CPU)[0]

    assert torch.equal(images(1), images(1))
    assert not torch.equal(images(1), images(2))
