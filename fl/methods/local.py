"""Training alone: the clients exchange nothing. The line that every other method must beat."""

from fl.clients import Clients
from fl.fusion.server import Server
from fl.methods.personal import AnyModelsConfig, Participations, personal_method
from fl.rounds import Rounds
from fl.server import Outcome


def run(clients: Clients, server: Server, config: AnyModelsConfig, *, rounds: Rounds) -> Outcome:
    """Rounds of local training, in which as many clients take part as in other methods."""
    taken = Participations(clients)
    for chosen in taken.play(rounds, server, config):
        clients.train(only=chosen, remember=True, goes_to="client")
    return rounds.outcome(None, figures=taken.fedavg_bytes())


METHOD = personal_method("local", AnyModelsConfig, run, any_targets=True)
