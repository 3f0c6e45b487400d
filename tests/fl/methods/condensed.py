"""What the tests of FedAF and FedDM share: settings, a federation of three, whole runs."""

from typing import Any

import torch
from torch import Tensor

from fl.clients import Clients
from fl.condensation.task import CondensationConfig
from fl.fusion.fit import FitConfig
from fl.methods import fedaf, feddm
from fl.methods.fedaf import FedAFConfig
from fl.rounds import Rounds
from fl.server import Outcome
from tests.fl.methods.tiny import WatchedServer, tiny_data, tiny_federation

SMALL = CondensationConfig(width=0.03, images_per_class=2, steps=2, batch_size=4, pixels="uint8")
FIT = FitConfig(epochs=3, lr=0.05, optimizer="sgd", batch_size=16, test_every=3)


def federation(config: Any) -> tuple[Clients, WatchedServer]:
    """Three clients, each of which lacks some classes."""
    data = tiny_data(train=120, test=40)
    return tiny_federation(config, num_clients=3, alpha=0.1, assign=fedaf.assign, data=data)


def play(config: Any, count: int = 1) -> tuple[Outcome, Clients, WatchedServer]:
    """A whole run of some rounds, and whom it was played with."""
    clients, server = federation(config)
    run = fedaf.run if isinstance(config, FedAFConfig) else feddm.run
    return run(clients, server, config, rounds=Rounds(count)), clients, server


def weights(outcome: Outcome) -> Tensor:
    """All that the global model has, in a row."""
    return torch.cat([t.flatten().double() for t in outcome.model.state_dict().values()])
