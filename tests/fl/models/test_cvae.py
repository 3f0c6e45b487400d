"""The CVAE's parts, its loss, its samples, and numbers bent to a truncated normal's."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl.models.architectures.cvaes import (
    Decoder,
    TruncatedDecoder,
    elbo_losses,
    one_hot,
    sample,
    truncate,
)
from fl.models.registry import GENERATORS, build_generator

GRAY, COLOR = (1, 28, 28), (3, 32, 32)
FORMS = [
    ("cvae-small", GRAY, 10),
    ("cvae-small", GRAY, 47),
    ("cvae-small", COLOR, 10),
    ("cvae-large", GRAY, 10),
    ("cvae-cifar", COLOR, 10),
]
forms = pytest.mark.parametrize(("name", "shape", "classes"), FORMS)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def batch(shape, classes, size=3, latent=20):
    return torch.rand(size, *shape), torch.randint(classes, (size,)), torch.randn(size, latent)


@forms
def test_forward_is_encode_then_decode(name, shape, classes):
    model = build_generator(name, shape, classes, width=0.25)
    images, labels, noise = batch(shape, classes)
    logits, mu, logvar = model(images, labels, noise)
    onehot = one_hot(labels, classes)
    torch.testing.assert_close((mu, logvar), model.encoder(images, onehot))
    z = mu + logvar.mul(0.5).exp() * noise
    torch.testing.assert_close(logits, model.decoder(z, onehot))


@forms
def test_who_sees_the_label(name, shape, classes):
    model = build_generator(name, shape, classes, width=0.25)
    images, _, noise = batch(shape, classes)
    first, second = (one_hot(torch.full((3,), c), classes) for c in (0, 1))
    same_mu = torch.equal(model.encoder(images, first)[0], model.encoder(images, second)[0])
    assert same_mu == (name == "cvae-cifar")
    assert not torch.equal(model.decoder(noise, first), model.decoder(noise, second))


@forms
def test_decoder_returns_logits_and_sample_images(name, shape, classes):
    model = build_generator(name, shape, classes, width=0.25)
    _, labels, noise = batch(shape, classes)
    logits = model.decoder(noise, one_hot(labels, classes))
    assert (logits < 0).any()
    images = sample(model.decoder, labels, noise)
    torch.testing.assert_close(images, torch.sigmoid(logits))
    assert images.shape == (3, *shape)
    assert images.min() >= 0
    assert images.max() <= 1
    assert not images.requires_grad


def test_logvar_is_bounded():
    model = build_generator("cvae-small", GRAY, 10, width=0.25)
    images, labels, noise = batch(GRAY, 10)
    logits, mu, logvar = model(images * 1e6, labels, noise)
    assert logvar.abs().max() <= 10
    assert elbo_losses(logits, images, mu, logvar).mean().isfinite()


@pytest.mark.parametrize("name", GENERATORS)
def test_all_parameters_learn(name):
    model = build_generator(name, COLOR, 10, width=0.25)
    images, labels, noise = batch(COLOR, 10)
    logits, mu, logvar = model(images, labels, noise)
    elbo_losses(logits, images, mu, logvar).mean().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_elbo_is_the_sum_over_samples(scale):
    logits, images = scale * torch.randn(4, 1, 5, 5), torch.rand(4, 1, 5, 5)
    mu, logvar = scale * torch.randn(4, 6), scale * torch.randn(4, 6)
    total = 0.0
    for i in range(4):
        for pixel, logit in zip(images[i].flatten(), logits[i].flatten(), strict=True):
            total -= pixel * F.logsigmoid(logit) + (1 - pixel) * F.logsigmoid(-logit)
        for m, v in zip(mu[i], logvar[i], strict=True):
            total += (m**2 + v.exp() - v - 1) / 2
    torch.testing.assert_close(elbo_losses(logits, images, mu, logvar).sum(), total)
    torch.testing.assert_close(elbo_losses(logits, images, mu, logvar).mean(), total / 4)


def test_truncated_numbers_have_the_truncated_normals_distribution() -> None:
    z = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    for bound in (1.0, 3.0):
        bent = truncate(z, bound)
        assert bent.abs().max() <= bound
        density = math.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
        inside = math.erf(bound / math.sqrt(2))
        variance = 1 - 2 * bound * density / inside
        assert bent.var().item() == pytest.approx(variance, rel=0.01)
        assert bent.mean().item() == pytest.approx(0, abs=0.01)
        below = (bent < bound / 2).float().mean().item()
        expected = 0.5 + math.erf(bound / 2 / math.sqrt(2)) / 2 / inside
        assert below == pytest.approx(expected, abs=0.005)
    torch.testing.assert_close(truncate(z, 9.0), z, atol=1e-4, rtol=1e-4)
    extreme = torch.tensor([-40.0, -8.0, 0.0, 8.0, 40.0])
    assert truncate(extreme, 3.0).tolist() == pytest.approx([-3, -3, 0, 3, 3], abs=1e-3)


def test_a_truncated_decoder_answers_for_the_bent_z() -> None:
    plain = Decoder(nn.Linear(2 + 3, 4), latent=2, num_classes=3)
    z, onehot = torch.randn(5, 2), torch.eye(3)[[0, 1, 2, 0, 1]]
    expected = plain(truncate(z, 1.0), onehot)
    torch.testing.assert_close(TruncatedDecoder(plain, 1.0)(z, onehot), expected)
