"""FedAvg in one shot (McMahan et al., AISTATS 2017, as FedMHO's Section 5.1.2 restricts it).

Every client trains a classifier. The server averages those of each prototype, and where there are
several prototypes lets the averages vote. Nothing is trained at the server.
"""

from dataclasses import dataclass

from fl.clients import Clients
from fl.federation import Outcome, Server
from fl.methods.prototypes import LOCAL, PrototypesConfig, averages, untrained
from fl.spaces import Spaces
from fl.training.local import train_local


@dataclass(frozen=True, kw_only=True)
class FedAvgConfig(PrototypesConfig):
    """FedAvg's settings: those of its clients."""


SPACES = Spaces(local=LOCAL)  # the average has nothing to search


def run(clients: Clients, server: Server, config: FedAvgConfig) -> Outcome:
    """One round and one average; ``start`` is the vote of the untrained prototypes."""
    updates = clients.map(train_local)
    with server.events.phase("fusion"):
        start = server.evaluate(untrained(updates, server))
        model = averages(updates, server)
        return Outcome(model=model, start=start, epochs=[server.evaluate(model)])
