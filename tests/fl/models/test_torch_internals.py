"""A module's shell shares its numbers and nothing else, wherever torch keeps what is in it."""

import torch
from torch import nn

from fl.models import copied, shell
from fl.models.torch_internals import TESTED_WITH
from tests.contracts import contract

TABLES = "the dicts in the __dict__ of torch.nn.Module"


def test_what_is_exchanged_in_a_shell_stays_in_the_original() -> None:
    with contract("torch", TABLES, TESTED_WITH):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        linear, norm = model
        twin = shell(model)
        assert [*map(id, twin.parameters())] == [*map(id, model.parameters())]
        twin[1] = nn.Identity()
        twin.register_forward_hook(lambda *_: 1 / 0)
        twin.register_buffer("seen", torch.zeros(1))
        own = shell(linear)
        own.weight = nn.Parameter(torch.zeros(3, 3))
        assert [*model] == [linear, norm]
        assert linear.weight.any()
        assert "seen" not in model.state_dict()
        model(torch.rand(2, 3))


def test_a_recurrent_layers_copy_computes_with_weights_of_its_own() -> None:
    with contract("torch", "torch.nn.LSTM's list of its weights", TESTED_WITH):
        layer = nn.LSTM(3, 4)
        x = torch.rand(5, 2, 3)
        before = layer(x)[0]
        twin = copied(layer)
        assert torch.equal(twin(x)[0], before)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        assert torch.equal(layer(x)[0], before)
        assert not torch.equal(twin(x)[0], before)
