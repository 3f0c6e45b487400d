"""Training alone: the clients exchange nothing. The line that every other method must beat."""

from fl.clients import Clients
from fl.fusion.server import Server
from fl.methods.method import Method
from fl.methods.personal import LOCAL, AnyModelsConfig, Participations
from fl.methods.prototypes import assign_all
from fl.rounds import Rounds
from fl.server import Outcome
from fl.spaces import Spaces


def run(clients: Clients, server: Server, config: AnyModelsConfig, *, rounds: Rounds) -> Outcome:
    """Rounds of local training, in which as many clients take part as in other methods."""
    taken = Participations(clients)
    for chosen in taken.play(rounds, server, config):
        clients.train(only=chosen, remember=True, goes_to="client")
    return rounds.outcome(None, figures=taken.fedavg_bytes())


METHOD = Method(
    name="local",
    config=AnyModelsConfig,
    assign=assign_all,
    run=run,
    any_targets=True,
    one_shot=False,
    scores_clients=lambda settings: True,
    spaces=Spaces(local=LOCAL),
)
