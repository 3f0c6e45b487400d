"""What the tests of FedAF and FedDM share: settings, a federation of three, whole runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


def federation(config: Any, seed: int = 0) -> tuple[Clients, WatchedServer]:
    """Three clients, each of which lacks some classes."""
    data = tiny_data(train=120, test=40)
    return tiny_federation(
        config, num_clients=3, seed=seed, alpha=0.1, assign=fedaf.assign, data=data
    )


def play(config: Any, count: int = 1, *, seed: int = 0) -> tuple[Outcome, Clients, WatchedServer]:
    """A whole run of some rounds, and whom it was played with."""
    clients, server = federation(config, seed)
    return runner(config)(clients, server, config, rounds=Rounds(count)), clients, server


def runner(config: Any) -> Callable[..., Outcome]:
    """The method whose settings these are."""
    return fedaf.run if isinstance(config, FedAFConfig) else feddm.run


def weights(outcome: Outcome) -> Tensor:
    """All that the global model has, in a row."""
    return torch.cat([t.flatten().double() for t in outcome.model.state_dict().values()])


def check_that_a_killed_run_goes_on_to_the_same_model(
    config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the second of its three rounds is tested."""
    run = runner(config)
    straight = run(*federation(config), config, rounds=Rounds(3))
    clients, server = federation(config)
    played, evaluate = [0], server.evaluate

    def dying(model: nn.Module) -> Any:
        played[0] += 1
        if played[0] == 3:  # before the first round, after it, and in the middle of the second
            raise KeyboardInterrupt
        return evaluate(model)

    monkeypatch.setattr(server, "evaluate", dying)
    with pytest.raises(KeyboardInterrupt):
        run(clients, server, config, rounds=Rounds(3, folder))
    resumed = run(*federation(config), config, rounds=Rounds(3, folder))
    assert torch.equal(weights(straight), weights(resumed))
    assert straight.epochs == resumed.epochs
