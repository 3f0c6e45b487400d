"""The CVAE's parts, its loss and its samples."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call, grad, stack_module_state, vmap

from fl.models import GENERATORS, build_generator, elbo_losses, one_hot, sample

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


@forms
def test_logvar_is_bounded(name, shape, classes):
    model = build_generator(name, shape, classes, width=0.25)
    images, labels, noise = batch(shape, classes)
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


@forms
def test_stacked_gradients_are_each_models_own(name, shape, classes):
    """Under torch.func: nothing in the model or its loss keeps a method from using it."""
    models = [build_generator(name, shape, classes, width=0.25) for _ in range(2)]
    batches = batch(shape, classes), batch(shape, classes)
    inputs = [torch.stack(tensors) for tensors in zip(*batches, strict=True)]

    def loss(parameters, images, labels, noise):
        out = functional_call(models[0], parameters, (images, labels, noise))
        return elbo_losses(out[0], images, out[1], out[2]).mean()

    stacked = vmap(grad(loss))(stack_module_state(models)[0], *inputs)
    for i, model in enumerate(models):
        own = grad(loss)(dict(model.named_parameters()), *(tensor[i] for tensor in inputs))
        for key, gradient in own.items():
            torch.testing.assert_close(stacked[key][i], gradient, rtol=1e-3, atol=1e-3)


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


def test_kl_term_is_torchs():
    mu, logvar = torch.randn(8, 20, dtype=torch.float64), torch.randn(8, 20, dtype=torch.float64)
    logits, images = torch.randn(2, 8, 1, 3, 3, dtype=torch.float64).sigmoid()
    bce = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    kl = elbo_losses(logits, images, mu, logvar).sum() - bce
    standard = Normal(torch.zeros_like(mu), torch.ones_like(mu))
    expected = kl_divergence(Normal(mu, (logvar / 2).exp()), standard).sum()
    torch.testing.assert_close(kl, expected)


def test_one_hot():
    labels = torch.tensor([2, 0])
    torch.testing.assert_close(one_hot(labels, 3), F.one_hot(labels, 3).float())
    assert one_hot(labels, 3, torch.float16).dtype == torch.float16


def test_training_lowers_the_loss_at_the_papers_rate():
    model = build_generator("cvae-small", GRAY, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    images, labels, _ = batch(GRAY, 10, size=16)
    images = images.round()
    losses = []
    for _ in range(40):
        logits, mu, logvar = model(images, labels, torch.randn(16, 20))
        loss = elbo_losses(logits, images, mu, logvar).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
