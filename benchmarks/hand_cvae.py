"""The training of CVAE-small for MNIST with its gradients derived by hand, without autograd.

What :mod:`stacked` measures executors against: the fewest operations that we know of, on one flat
buffer each for weights, gradients and Adam's moments.
"""

import torch
from torch import Tensor, nn

from fl.exchange import prefixed
from fl.federation import TaskInput, TaskOutput
from fl.models.architectures.cvaes import LOGVAR_BOUND
from fl.torch_internals import adam_step
from fl.training.generator import GeneratorConfig, starting_generator

BETAS = (0.9, 0.999)


@torch.no_grad()
def hand_derived(inputs: TaskInput) -> TaskOutput:
    """The client's training: the same numbers as by autograd, but for rounding."""
    config = inputs.client.training
    assert isinstance(config, GeneratorConfig)
    model = starting_generator(config, inputs.run_spec).to(inputs.device)
    weights, gradients = flat_buffers(model)
    means, squares = torch.zeros_like(weights), torch.zeros_like(weights)
    images = inputs.shard.images.flatten(1).to(inputs.device)
    columns = torch.arange(inputs.run_spec.num_classes)
    onehot = (inputs.shard.labels.unsqueeze(1) == columns).float().to(inputs.device)
    orders, noise = inputs.stream("local/order"), inputs.stream("local/latent")
    steps = torch.zeros((), device=inputs.device)
    for _ in range(config.epochs):
        order = torch.randperm(len(images), generator=orders).to(inputs.device)
        for own in order.split(config.batch_size):
            drawn = torch.randn(len(own), config.latent, generator=noise).to(inputs.device)
            gradient_step(model, images[own], onehot[own], drawn)
            steps += 1
            adam_step([weights], [gradients], [means], [squares], steps, lr=config.lr, betas=BETAS)
    return TaskOutput(
        tensors={
            **prefixed("decoder", model.decoder.cpu()),
            "label_counts": inputs.shard.label_counts,
        }
    )


def flat_buffers(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Moves the model's weights into one buffer, and their gradients into another."""
    parameters = list(model.parameters())
    weights = torch.cat([p.detach().flatten() for p in parameters])
    gradients = torch.empty_like(weights)
    sizes = [p.numel() for p in parameters]
    parts = zip(parameters, weights.split(sizes), gradients.split(sizes), strict=True)
    for parameter, own, gradient in parts:
        parameter.data, parameter.grad = own.view_as(parameter), gradient.view_as(parameter)
    return weights, gradients


def gradient_step(model: nn.Module, images: Tensor, onehot: Tensor, noise: Tensor) -> None:
    """Writes the gradient of the batch's mean loss (Eq. 3): images (B, pixels), onehot (B,
    classes), noise (B, latent)."""
    encoder: nn.Module = model.encoder  # type: ignore[assignment]
    first, mu_layer, logvar_layer = encoder.layers[0], encoder.mu, encoder.logvar  # type: ignore[index]
    second, last = model.decoder.layers[0], model.decoder.layers[2]  # type: ignore[index,union-attr]
    seen = torch.cat([images, onehot], 1)
    hidden = forward(first, seen).relu_()
    mu, raw = forward(mu_layer, hidden), forward(logvar_layer, hidden)
    logvar = raw.clamp(-LOGVAR_BOUND, LOGVAR_BOUND)
    deviation = (logvar / 2).exp_()
    drawn = torch.cat([mu + deviation * noise, onehot], 1)
    widened = forward(second, drawn).relu_()
    logits = forward(last, widened)

    share = 1 / len(images)
    of_logits = logits.sigmoid_().sub_(images).mul_(share)
    of_widened = backward(last, widened, of_logits).mul_(widened > 0)
    of_z = backward(second, drawn, of_widened)[:, : noise.shape[1]]
    of_mu = of_z.add(mu, alpha=share)
    of_logvar = (of_z * noise).mul_(deviation / 2)
    of_logvar.add_(deviation.square().sub_(1), alpha=share / 2).mul_(raw == logvar)
    of_hidden = backward(mu_layer, hidden, of_mu).add_(backward(logvar_layer, hidden, of_logvar))
    backward(first, seen, of_hidden.mul_(hidden > 0), of_inputs=False)


def forward(layer: nn.Module, rows: Tensor) -> Tensor:
    """A linear layer of the rows."""
    return torch.addmm(layer.bias, rows, layer.weight.t())  # type: ignore[arg-type,operator]


def backward(layer: nn.Module, rows: Tensor, gradient: Tensor, *, of_inputs: bool = True) -> Tensor:
    """Writes the layer's gradients; returns that of its input rows, if it is asked for."""
    torch.mm(gradient.t(), rows, out=layer.weight.grad)  # type: ignore[arg-type]
    torch.sum(gradient, 0, out=layer.bias.grad)  # type: ignore[arg-type]
    return gradient @ layer.weight if of_inputs else gradient  # type: ignore[operator]
