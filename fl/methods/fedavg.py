"""FedAvg (McMahan et al., AISTATS 2017), in one round (as in FedMHO's Section 5.1.2) or in many.

In each round some clients train the model that the server sent, and the server averages what they
upload. If there are several prototypes each is averaged by itself, and the averages form an
ensemble. Nothing is trained at the server.
"""

from dataclasses import dataclass
from typing import Literal

from fl.clients import Clients
from fl.methods.method import Method
from fl.methods.participation import ParticipationConfig, participants
from fl.methods.prototypes import LOCAL, assign, average_each, sent, untrained
from fl.rounds import Rounds
from fl.server import Outcome, Server
from fl.spaces import Spaces


@dataclass(frozen=True, kw_only=True)
class FedAvgConfig(ParticipationConfig):
    """FedAvg's settings, beside those of its clients."""

    weighting: Literal["samples", "uniform"] | None = None
    """Weights of the average: the clients' numbers of samples, or all alike. Default: samples in
    many rounds, as McMahan et al. have it; uniform in one, as FedMHO has it."""

    def by_samples(self, rounds: int) -> bool:
        """Whether clients are weighted by their samples in a run of so many rounds."""
        return (self.weighting or ("samples" if rounds > 1 else "uniform")) == "samples"


def run(clients: Clients, server: Server, config: FedAvgConfig, *, rounds: Rounds) -> Outcome:
    """Rounds of local training and averaging; ``start`` is the ensemble of untrained prototypes.

    In the first round nothing is sent, as the clients' starting weights are drawn from the seed.
    """
    ensemble, model = untrained(clients.members, server)
    by_samples = config.by_samples(rounds.count)
    for number in rounds.play(clients, server, ensemble):
        chosen = participants(clients, config.participation, number)
        payloads = sent(model, (clients.members[k] for k in chosen)) if number > 1 else None
        updates = clients.train(only=chosen, payloads=payloads)
        with server.events.phase("fusion"):
            average_each(model, updates, clients, server, by_samples=by_samples)
    return rounds.outcome(ensemble)


METHOD = Method(
    name="fedavg",
    config=FedAvgConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(local=LOCAL),  # the average has no settings to search
)
