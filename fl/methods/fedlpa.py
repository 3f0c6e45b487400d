"""FedLPA (Liu et al., NeurIPS 2024): what clients know of each layer is multiplied, not averaged.

Each client trains a classifier, and sends of each layer the Kronecker factors A_k and B_k of its
posterior's precision around the weights M_k. The mode of the product of all clients' posteriors is
the M with

    sum_k p_k B_k M A_k = sum_k p_k B_k M_k A_k,      p_k = n_k / n

a linear equation that the server solves layer by layer, by conjugate gradients. Other weights, such
as BatchNorm's, are averaged. Each prototype is fused by itself; the models form an ensemble.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from fl.bounds import AtLeast, AtMost, Positive
from fl.clients import Clients
from fl.federation import Update
from fl.fusion.server import Server
from fl.methods.method import Method
from fl.methods.prototypes import LOCAL, PrototypesConfig, assign, average_each, untrained
from fl.methods.uploads import MEAN, aggregate_classifiers
from fl.server import Outcome
from fl.spaces import LogUniform, Spaces
from fl.training.posterior import check_factors, factored, places, precision, send_factors


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
