"""Kronecker factors of a trained classifier's posterior, layer by layer (FedLPA).

A layer's posterior is a Gaussian around its weights M (outputs, inputs + 1 for the bias). Its
precision is the empirical Fisher matrix, taken as the Kronecker product of A, of what enters the
layer, and of B, of the loss's gradients by what leaves it.
"""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.exchange import Tensors
from fl.federation import RunSpec, TaskInput, TaskOutput, Update
from fl.models.state import parameters_sent
from fl.training.classifier import ClassifierConfig, starting_classifier
from fl.training.losses import losses_of
from fl.training.personal import last_model
from fl.training.recipe import parts_of

Layer = nn.Linear | nn.Conv2d


def factored(model: nn.Module) -> dict[str, Layer]:
    """The layers that have factors, by name: linear ones and plain convolutions, if trained."""
    sent = parameters_sent(model)
    return {
        path: layer
        for path, layer in model.named_modules()
        if isinstance(layer, Layer)
        and _is_plain(layer)
        and all(f"{path}.{name}" in sent for name, _ in layer.named_parameters())
    }


def _is_plain(layer: Layer) -> bool:
    if [name for name, _ in layer.named_parameters()] not in (["weight"], ["weight", "bias"]):
        return False
    if isinstance(layer, nn.Linear):
        return True
    in_pixels = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return in_pixels and layer.groups == 1


def factor_names(model: nn.Module) -> dict[str, int]:
    """By the names under which the factors are sent, ``A.LAYER`` and ``B.LAYER``, their rows: the
    layer's inputs, one more for a bias, and its outputs."""
    found = {}
    for name, layer in factored(model).items():
        found[f"A.{name}"] = layer.weight[0].numel() + (layer.bias is not None)
        found[f"B.{name}"] = len(layer.weight)
    return found


def send_factors(inputs: TaskInput) -> TaskOutput:
    """The factors of the model that the client has just trained, over its samples and labels: of
    each the upper triangle, as float32."""
    config = inputs.client.training
    assert isinstance(config, ClassifierConfig)
    model = last_model(inputs, config)
    assert model is not None, "factors are sent by clients that remember their model"
    found = factors(model, inputs, config.batch_size)
    return TaskOutput(tensors={n: upper(t.float()).cpu() for n, t in found.items()})


def factors(model: nn.Module, inputs: TaskInput, batch_size: int) -> Tensors:
    """A = E[a a^T] and B = E[g g^T] of each layer, in eval mode.

    Of a convolution A is the mean over its places, and B the sum (Grosse and Martens, ICML 2016).
    """
    losses, shard = losses_of(inputs.run_spec, model.eval()), inputs.shard
    layers = factored(model)
    total = {n: torch.zeros(k, k, device=inputs.device) for n, k in factor_names(model).items()}
    passed: list[tuple[str, Tensor, Tensor]] = []

    def note(name: str, layer: nn.Module, given: tuple[Tensor], output: Tensor) -> Tensor:
        passed.append((name, given[0].detach(), output))
        return output.clone()  # what follows may change it in place

    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in layers.items()]
    for part in parts_of({"images": shard.images, "labels": shard.wanted}, batch_size):
        passed.clear()
        loss = losses(model, {n: column.to(inputs.device) for n, column in part.items()}).sum()
        left = [output for *_, output in passed]
        gradients = torch.autograd.grad(loss, left, materialize_grads=True)
        for (name, given, _), gradient in zip(passed, gradients, strict=True):
            a, g = _rows(layers[name], given, gradient)  # (samples, places, values)
            share = 1 / (len(shard) * a.shape[1])
            total[f"A.{name}"].add_(torch.einsum("bsi,bsj->ij", a, a), alpha=share)
            total[f"B.{name}"].add_(torch.einsum("bsi,bsj->ij", g, g), alpha=1 / len(shard))
    for hook in hooks:
        hook.remove()
    return total


def _rows(layer: Layer, given: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """What enters, with a 1 for a bias, and the gradients, both (samples, places, values)."""
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        kernel, dilation, padding = layer.kernel_size, layer.dilation, layer.padding
        a = F.unfold(given, kernel, dilation, padding, layer.stride).mT
        g = gradient.flatten(2).mT
    else:
        a, g = (t.reshape(len(t), -1, t.shape[-1]) for t in (given, gradient))
    return (a if layer.bias is None else F.pad(a, (0, 1), value=1.0)), g


@torch.no_grad()
def places(model: nn.Module, run_spec: RunSpec) -> dict[str, int]:
    """S, the number of a layer's places: of a convolution the pixels of what it gives, else 1."""
    found = dict.fromkeys(factored(model), 1)

    def note(name: str, layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        found[name] = output.flatten(2).shape[2] if isinstance(layer, nn.Conv2d) else 1

    hooks = [own.register_forward_hook(partial(note, n)) for n, own in factored(model).items()]
    model.eval()(run_spec.inputs.zeros(2).to(next(model.parameters()).device))
    for hook in hooks:
        hook.remove()
    return found


def precision(
    sent: Mapping[str, Tensor], name: str, layer: Layer, count: int, damping: float
) -> tuple[Tensor, Tensor]:
    """A and B of a layer with ``count`` places, from what a client sent, float64.

    As the released code scales them: A is divided by S and B multiplied by it, before the square
    root of the damping is added to the diagonals.
    """
    inputs = layer.weight[0].numel() + (layer.bias is not None)
    device = layer.weight.device
    a = whole(sent[f"A.{name}"].to(device).double() / count, inputs)
    b = whole(sent[f"B.{name}"].to(device).double() * count, len(layer.weight))
    for side in (a, b):
        side.diagonal().add_(damping**0.5)
    return a, b


def check_factors(damping: float, update: Update, run_spec: RunSpec) -> None:
    """Raises `ValueError` unless it holds the factors of the client's architecture, which are
    symmetric by their form, and positive definite once they are damped."""
    config = update.client.training
    assert isinstance(config, ClassifierConfig)
    model, sender = starting_classifier(config, run_spec), f"client {update.client.id}"
    expected = factor_names(model)
    if update.tensors.keys() != expected.keys():
        raise ValueError(f"{sender} sent other factors than its model has")
    for name, n in expected.items():
        sent = update.tensors[name]
        if sent.shape != (n * (n + 1) // 2,) or sent.dtype != torch.float32:
            raise ValueError(f"{sender} sent {name} as {sent.dtype} {tuple(sent.shape)}")
    layers = factored(model)
    for name, count in places(model, run_spec).items():
        both = precision(update.tensors, name, layers[name], count, damping)
        if any(int(torch.linalg.cholesky_ex(side).info) for side in both):
            raise ValueError(f"{sender} sent factors of {name} with negative eigenvalues")


def upper(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix (n, n), row by row."""
    return matrix[tuple(torch.triu_indices(*matrix.shape, device=matrix.device))]


def whole(triangle: Tensor, n: int) -> Tensor:
    """The symmetric matrix (n, n) with that upper triangle."""
    matrix = triangle.new_zeros(n, n)
    matrix[tuple(torch.triu_indices(n, n, device=triangle.device))] = triangle
    return matrix + matrix.triu(1).T
