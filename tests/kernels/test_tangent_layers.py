"""The recursion over pairs, and the gradients that are written by hand."""

import math

import pytest
import torch
from torch import Tensor

from kernels.tangent_layers import Layer, Network, backward, forward

NETWORKS = [Network(), Network(depth=1, bias=0.0), Network(depth=3, weight_variance=1.4, bias=0.7)]
networks = pytest.mark.parametrize("network", NETWORKS, ids=str)


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """k, q (3, 1) and q' (1, 4), with angles of all sizes."""
    stream = torch.Generator().manual_seed(0)
    left, right = (
        torch.rand(shape, generator=stream, dtype=torch.float64) + 0.3 for shape in ((3, 1), (1, 4))
    )
    cosines = torch.linspace(-0.99, 0.999, 12, dtype=torch.float64).view(3, 4)
    return cosines * (left * right).sqrt(), left, right


def by_the_book(k: Tensor, left: Tensor, right: Tensor, network: Network) -> Tensor:
    """The module's equations, for autograd."""
    kernel = k
    for _ in range(network.depth):
        norm = (left * right).sqrt()
        angle = torch.arccos(k / norm)
        arc = angle.sin() + (math.pi - angle) * angle.cos()
        k = network.weight_variance * norm * arc / (2 * math.pi) + network.offset
        kernel = k + network.weight_variance * kernel * (math.pi - angle) / (2 * math.pi)
        left, right = (network.gain * q + network.offset for q in (left, right))
    return kernel


@networks
def test_forward_is_the_recursion_whether_or_not_it_keeps_layers(network: Network) -> None:
    given = drawn()
    layers: list[Layer] = []
    found = forward(*given, network, layers)
    torch.testing.assert_close(found, by_the_book(*given, network), rtol=1e-12, atol=0)
    assert torch.equal(found, forward(*given, network, None))
    assert len(layers) == network.depth


@networks
def test_backward_is_what_autograd_finds(network: Network) -> None:
    given = [t.requires_grad_() for t in drawn()]
    weights = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)
    expected = torch.autograd.grad(by_the_book(*given, network), given, weights)
    layers: list[Layer] = []
    forward(*(t.detach() for t in given), network, layers)
    for _ in range(2):  # it changes nothing that it is given
        found = backward(weights, layers, network)
        for own, other in zip(found, expected, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)


@networks
def test_of_parallel_rows_the_smooth_part_alone_has_a_gradient(network: Network) -> None:
    q = torch.tensor([0.5, 0.8], dtype=torch.float64)
    layers: list[Layer] = []
    found = forward(q, q, q, network, layers)
    diagonal = network.diagonal_slope * q + network.diagonal_start
    torch.testing.assert_close(found, diagonal, rtol=1e-14, atol=0)
    by_k, by_left, by_right = backward(torch.ones_like(q), layers, network)
    torch.testing.assert_close(by_k, torch.full_like(q, network.diagonal_slope))
    assert not by_left.any()
    assert not by_right.any()


def test_opposite_rows_are_in_no_layer_active_together() -> None:
    q = torch.tensor([0.5], dtype=torch.float64)
    network = Network(depth=1, bias=0.0)
    layers: list[Layer] = []
    assert forward(-q, q, q, network, layers).item() == 0
    assert all(not g.any() for g in backward(torch.ones_like(q), layers, network))


def test_nan_stays() -> None:
    q = torch.ones(1, dtype=torch.float64)
    assert forward(q * math.nan, q, q, Network(), None).isnan().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "need a hidden layer, got depth 0"),
        ({"weight_variance": 0.0}, "unfit weight variance 0.0 or bias 0.1"),
        ({"weight_variance": math.nan}, "unfit weight variance nan"),
        ({"bias": math.inf}, "or bias inf"),
    ],
)
def test_what_is_no_network_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network(**options)  # type: ignore[arg-type]
