"""Plain loops and the methods themselves, where nothing is left to chance.

A batch holds all of a client's samples, as many of each class.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import plain_rounds
import torch
from robust import members_of
from torch import Tensor, nn

from fl.clients import Clients
from fl.data.shard import Shard
from fl.events import Events
from fl.executor import InProcess
from fl.federation import RunSpec
from fl.fusion.server import SingleServer
from fl.methods.registry import get_method
from fl.rounds import Rounds
from fl.seeding import seeded
from tests.fl.methods.tiny import NoStore, tiny_data

CPU = torch.device("cpu")
DATA = tiny_data(train=240, test=40)
SPEC = RunSpec.of_images((1, 28, 28), num_classes=10, seed=0)
PREPARED: Any = SimpleNamespace(run_spec=SPEC)


SOME = [np.arange(30), np.arange(30, 90), np.arange(90, 95)]


def ours(name: str, config: Any, indices: list[np.ndarray], rounds: int) -> nn.Module:
    """The global model after so many rounds of the method itself."""
    method = get_method(name)
    members = members_of(method, config, indices, SPEC)
    events, images = Events(), plain_rounds.as_images(DATA.test.images, CPU)
    clients = Clients(members, indices, SPEC, InProcess(DATA.train), NoStore(), events)
    server = SingleServer(SPEC, Shard(images, torch.tensor(DATA.test.labels), 10), events, CPU)
    outcome = method.run(clients, server, config, rounds=Rounds(rounds))
    model: nn.Module = outcome.model
    return model


def plainly(plays: Any, config: Any, indices: list[np.ndarray], rounds: int) -> list[nn.Module]:
    """The global model after each round of the plain loop, from the start that the method has."""
    shards = [
        (plain_rounds.as_images(DATA.train.images[own], CPU), torch.tensor(DATA.train.labels[own]))
        for own in indices
    ]
    local = getattr(config, "classifier", None) or config.local
    with seeded(SPEC.seed, f"start/{local.model}"):
        played = plays(PREPARED, config, shards, rounds, CPU)
        return [plain_rounds.copy.deepcopy(model) for model in played]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def assert_close(one: nn.Module, other: nn.Module) -> None:
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


new_model = plain_rounds.new_model
