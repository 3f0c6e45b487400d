"""Chains of linear layers, forwards and backwards, beside autograd."""

import pytest
import torch
from torch import nn

from fl.training.dense_cvae import LinearChain, flattened

CHAINS = {
    "one": [nn.Linear(5, 3)],
    "activated": [nn.Linear(5, 4), nn.ReLU()],
    "deep": [nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.Linear(6, 6), nn.ReLU()],
    "shaped": [nn.Flatten(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.Unflatten(1, (2, 3))],
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("rows", [1, 7])
def test_gradients_are_autograds(name: str, rows: int) -> None:
    model = nn.Sequential(*CHAINS[name]).double()
    seen = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    expected = model(seen).flatten(1)
    weighing = torch.randn_like(expected)
    of_all = torch.autograd.grad((expected * weighing).sum(), [seen, *model.parameters()])
    flattened(model)
    chain = LinearChain.of(model.children())
    assert chain is not None
    with torch.no_grad():
        torch.testing.assert_close(chain.forward(seen.detach()), expected)
        of_seen = chain.backward(weighing.clone())
    torch.testing.assert_close([of_seen, *(p.grad for p in model.parameters())], [*of_all])


def test_the_inputs_gradient_is_not_computed_unless_it_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(5, 3))
    flattened(model)
    chain = LinearChain.of(model.children())
    assert chain is not None
    with torch.no_grad():
        chain.forward(torch.zeros(2, 5))
        assert chain.backward(torch.ones(2, 3), of_inputs=False).shape == (2, 3)
    assert model[0].bias.grad is not None
    assert model[0].bias.grad.tolist() == [2, 2, 2]


class OwnLinear(nn.Linear):
    """Might do anything."""


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [nn.ReLU()],
        [nn.Linear(5, 3, bias=False)],
        [nn.Linear(5, 3), nn.Sigmoid()],
        [OwnLinear(5, 3)],
        [nn.Conv2d(1, 2, 3)],
        [nn.Linear(5, 3), nn.BatchNorm1d(3)],
    ],
    ids=str,
)
def test_other_layers_are_no_chain(layers: list[nn.Module]) -> None:
    assert LinearChain.of(layers) is None
