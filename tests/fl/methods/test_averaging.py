"""The frame of FedAvg's relatives: what it checks of what clients upload beside their weights."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fl.federation import Update
from fl.methods.averaging import Averaging
from fl.models.common import parameters_sent
from fl.rounds import Rounds
from tests.fl.methods.averaged import CLIENTS, federation, settings


@pytest.mark.parametrize("change", ["missing", "shape", "type"])
@pytest.mark.parametrize(("method", "prefix"), [("feddyn", "drift"), ("scaffold", "change")])
def test_what_is_uploaded_beside_the_weights_is_checked(
    method: str, prefix: str, change: str
) -> None:
    local = {"model": "cnn", "width": 0.3}
    config = settings(method, local)
    clients, server = federation(method, config)
    frame = Averaging(clients, server, config, Rounds(1))
    check, run_spec, member = (
        frame.checked_also(prefix),
        clients.run_spec,
        clients.members[CLIENTS - 1],
    )
    (model,) = frame.model.values()
    weights: dict[str, Tensor] = frame.sent()[member.training]
    beside = {f"{prefix}.{name}": p.detach().clone() for name, p in parameters_sent(model).items()}
    told = Update(client=member, tensors={**weights, **beside}, stats={}, seconds=1.0, reused=False)
    check(told, run_spec)
    name, tensor = beside.popitem()
    if change != "missing":
        beside[name] = torch.stack([tensor, tensor]) if change == "shape" else tensor.double()
    with pytest.raises(ValueError, match=rf"client {member.id} sent .*{prefix}"):
        check(replace(told, tensors={**weights, **beside}), run_spec)
