"""The gradients derived by hand are those of autograd."""

import torch
from hand_cvae import flat_buffers, gradient_step

from fl.federation import RunSpec
from fl.models.cvae import elbo_losses
from fl.training.generator import GeneratorConfig, starting_generator

SPEC = RunSpec(image_shape=(1, 28, 28), num_classes=10, seed=0)


def test_a_steps_gradients_are_those_of_autograd() -> None:
    model = starting_generator(GeneratorConfig(width=0.1, latent=4), SPEC)
    images, labels = torch.rand(6, 1, 28, 28), torch.arange(6)
    noise = torch.randn(6, 4)
    with torch.no_grad():
        model.encoder.logvar.bias[0] = 50.0  # beyond its bound, where no gradient passes
    logits, mu, logvar = model(images, labels, noise)
    loss = elbo_losses(logits, images, mu, logvar).mean()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    _, gradients = flat_buffers(model)
    with torch.no_grad():
        onehot = torch.eye(10)[labels]
        gradient_step(model, images.flatten(1), onehot, noise)
    flat = torch.cat([gradient.flatten() for gradient in expected])
    torch.testing.assert_close(gradients, flat, rtol=1e-4, atol=1e-5)
