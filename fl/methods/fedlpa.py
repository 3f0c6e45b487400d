"""FedLPA (Liu et al., NeurIPS 2024): what clients know of each layer is multiplied, not averaged.

Each client trains a classifier. A layer's posterior is a Gaussian around its weights M_k (outputs,
inputs + 1 for the bias). Its precision is the empirical Fisher matrix, taken as the Kronecker
product of A_k, of what enters the layer, and of B_k, of the loss's gradients by what leaves it. The
client sends these. The mode of the product of all clients' posteriors is the M with

    sum_k p_k B_k M A_k = sum_k p_k B_k M_k A_k,      p_k = n_k / n

a linear equation that the server solves layer by layer, by conjugate gradients. Other weights, such
as BatchNorm's, are averaged. Each prototype is fused by itself; the models form an ensemble.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import AtLeast, AtMost, Positive
from fl.clients import Clients
from fl.exchange import Tensors
from fl.federation import RunSpec, TaskInput, TaskOutput, Update
from fl.fusion.server import Server
from fl.methods.method import LogUniform, Method, Spaces
from fl.methods.prototypes import LOCAL, PrototypesConfig, assign, average_each, untrained
from fl.methods.uploads import MEAN, aggregate_classifiers
from fl.models.common import parameters_sent
from fl.server import Outcome
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
    config = inputs.record(ClassifierConfig)
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
    model.eval()(run_spec.inputs.example(2).to(next(model.parameters()).device))
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
    model, sender = starting_classifier(config, run_spec), update.sender
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


@dataclass(frozen=True, kw_only=True)
class FedLPAConfig(PrototypesConfig):
    """FedLPA's settings: those of its clients, and how the server solves."""

    damping: Positive = 1e-3
    """lambda: sqrt(lambda) is added to the diagonals of A_k and B_k (released: 0.001)."""
    iterations: Annotated[int, AtLeast(0), AtMost(100_000)] = 100
    """Most steps of conjugate gradients for a layer, from (sum_k p_k B_k)^-1 Z (sum_k p_k A_k)^-1,
    Z the right side; 0 for that alone (the released code: 10,000 of gradient descent)."""


def run(clients: Clients, server: Server, config: FedLPAConfig) -> Outcome:
    """Local training, the factors, and their fusion; ``start`` is of untrained prototypes."""
    ensemble, model = untrained(clients.members, server)
    start = server.evaluate(ensemble)
    updates = clients.train(remember=True)
    able = [update.client.id for update in updates]
    check = partial(check_factors, config.damping)
    factors = {u.client.id: u.tensors for u in clients.map(send_factors, only=able, check=check)}

    def fuse(model: nn.Module, group: Sequence[Update]) -> None:
        fuse_posteriors(model, group, [factors[u.client.id] for u in group], server, config)

    with server.events.phase("fusion"):
        left = [update for update in updates if update.client.id in factors]
        average_each(model, left, clients, server, fuse=fuse)
        found = server.evaluate(ensemble)
    return Outcome(model=ensemble, start=start, epochs=[found])


@torch.no_grad()
def fuse_posteriors(
    model: nn.Module,
    updates: Sequence[Update],
    factors: Sequence[Mapping[str, Tensor]],
    server: Server,
    config: FedLPAConfig,
) -> None:
    """Loads the mode of the product of the clients' posteriors into the model."""
    sizes = [update.client.num_samples for update in updates]
    aggregate_classifiers(model, updates, MEAN, sizes)
    layers, shares = factored(model), [n / sum(sizes) for n in sizes]
    for name, count in places(model, server.run_spec).items():
        layer = layers[name]
        names = [f"classifier.{name}.{part}" for part, _ in layer.named_parameters()]
        means = []
        for update in updates:
            parts = (update.tensors[n].to(server.device) for n in names)
            means.append(torch.cat([part.view(len(part), -1) for part in parts], 1).double())
        precisions = [precision(own, name, layer, count, config.damping) for own in factors]
        mode, first = solve(shares, means, precisions, config.iterations), 0
        for parameter in layer.parameters():
            width = parameter[0].numel()
            parameter.copy_(mode[:, first : first + width].view_as(parameter))
            first += width


def solve(
    shares: Sequence[float],
    means: Sequence[Tensor],
    precisions: Sequence[tuple[Tensor, Tensor]],
    iterations: int,
    tolerance: float = 1e-6,
) -> Tensor:
    """M with sum_k p_k B_k M A_k = sum_k p_k B_k M_k A_k, (outputs, inputs), by preconditioned
    conjugate gradients, to a residual of that share of the right side, or so many steps.

    Args:
        shares: p_k.
        means: M_k, (outputs, inputs).
        precisions: A_k (inputs, inputs) and B_k (outputs, outputs), positive definite.
        iterations: steps at most.
        tolerance: of the residual.
    """

    def applied(each: Sequence[Tensor]) -> Tensor:
        terms = zip(shares, each, precisions, strict=True)
        return torch.stack([p * (b @ m @ a) for p, m, (a, b) in terms]).sum(0)

    mean_a, mean_b = (
        torch.linalg.cholesky(sum(p * own[side] for p, own in zip(shares, precisions, strict=True)))
        for side in (0, 1)
    )

    def guessed(z: Tensor) -> Tensor:
        """The solution if all clients had the mean factors."""
        return torch.cholesky_solve(torch.cholesky_solve(z, mean_b).T, mean_a).T

    wanted = applied(means)
    m = guessed(wanted)
    residual = wanted - applied([m] * len(shares))
    step = direction = guessed(residual)
    size = (residual * step).sum()
    for _ in range(iterations):
        if residual.norm() <= tolerance * wanted.norm():
            break
        moved = applied([direction] * len(shares))
        rate = size / (direction * moved).sum()
        m, residual = m + rate * direction, residual - rate * moved
        step, before = guessed(residual), size
        size = (residual * step).sum()
        direction = step + size / before * direction
    return m


METHOD = Method(
    name="fedlpa",
    config=FedLPAConfig,
    assign=assign,
    run=run,
    spaces=Spaces(server={"damping": LogUniform(1e-5, 1e-1)}, local=LOCAL),
)
