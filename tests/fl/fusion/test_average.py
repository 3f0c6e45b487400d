"""Averages of uploads, weighted and not."""

import pytest
import torch
from torch import Tensor, nn

from fl.exchange import Tensors
from fl.fusion.aggregation import average_into, average_states


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    for _ in range(seed + 1):
        model(torch.randn(8, 3))
    return model


def states(count: int) -> list[Tensors]:
    return [net(seed).state_dict() for seed in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_average_is_the_plain_mean_of_every_weight(count: int) -> None:
    clients = states(count)
    mean = average_states(clients)
    assert mean.keys() == clients[0].keys()
    for name, tensor in mean.items():
        assert tensor.dtype == clients[0][name].dtype
        assert tensor.shape == clients[0][name].shape
        flat = [state[name].flatten().tolist() for state in clients]
        for i, value in enumerate(tensor.flatten().tolist()):
            expected = sum(weights[i] for weights in flat) / count
            if not tensor.is_floating_point():
                expected = int(expected)
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_an_integer_buffer_stays_one_and_is_rounded_down() -> None:
    counters = [{"batches": torch.tensor(n)} for n in (1, 2, 5, 7)]
    mean = average_states(counters)["batches"]
    assert mean.dtype == torch.int64
    assert mean.item() == 15 // 4


def test_the_order_of_the_clients_does_not_matter() -> None:
    clients = states(4)
    forward, backward = average_states(clients), average_states(clients[::-1])
    for name, tensor in forward.items():
        torch.testing.assert_close(tensor, backward[name], rtol=1e-6, atol=1e-9)


def test_small_weights_survive_between_large_ones() -> None:
    def of(value: float) -> dict[str, Tensor]:
        return {"w": torch.tensor(value)}

    mean = average_states([of(1e8), of(3.0), of(-1e8)])["w"]
    assert mean.item() == 1


def test_the_clients_weights_are_left_alone() -> None:
    clients = states(3)
    copies = [{name: t.clone() for name, t in state.items()} for state in clients]
    average_states(clients)["0.weight"].zero_()
    for state, copy in zip(clients, copies, strict=True):
        assert all(torch.equal(state[name], copy[name]) for name in copy)


def test_the_model_holds_the_average_afterwards() -> None:
    clients = states(3)
    model = net(7)
    assert average_into(model, clients) is model
    for name, tensor in average_states(clients).items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_a_client_of_another_architecture_cannot_be_averaged() -> None:
    with pytest.raises(KeyError):
        average_states([*states(2), nn.Linear(3, 4).state_dict()])
