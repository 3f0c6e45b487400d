"""FedOV (Diao et al., ICLR 2023): clients' classifiers know what they do not know, and vote.

Each client trains with a class more, the unknown one, whose samples it makes of its own images:
destroyed ones, and the same moved to where the classifier takes them for known. The server has the
classifiers vote with the probabilities of the known classes, so who does not know a sample has no
say. Nothing is trained at the server.
"""

from dataclasses import dataclass

from fl.bounds import Count
from fl.clients import Clients
from fl.fusion.server import Server
from fl.methods.method import Method
from fl.methods.prototypes import LOCAL, PrototypesConfig, assign, prototypes
from fl.methods.uploads import load_classifier, untrained_classifier
from fl.models.ensemble import Ensemble, OpenVote
from fl.server import Outcome
from fl.spaces import Choice, LogUniform, Spaces
from fl.training.unknown import LocalFedOV


@dataclass(frozen=True, kw_only=True)
class FedOVConfig(PrototypesConfig):
    """FedOV's settings: those of its clients, and who votes."""

    classifier: LocalFedOV = LocalFedOV()
    voters: Count | None = None
    """Classifiers that vote on a sample, those to which it is least unknown. Default: all."""


def run(clients: Clients, server: Server, config: FedOVConfig) -> Outcome:
    """argmax_c sum_k p_k(c | x) over the known classes; ``start`` is of untrained classifiers."""
    updates = clients.train()
    with server.events.phase("fusion"):
        vote = OpenVote(config.voters)
        untrained = [untrained_classifier(t, server) for t in prototypes(clients.members)]
        model = Ensemble([load_classifier(update, server) for update in updates], vote).eval()
        before, after = (server.evaluate(m) for m in (Ensemble(untrained, vote), model))
    return Outcome(model=model, start=before, epochs=[after])


METHOD = Method(
    name="fedov",
    config=FedOVConfig,
    assign=assign,
    run=run,
    spaces=Spaces(
        server={"voters": Choice((1, 3, 5, 10))},
        local={**LOCAL, "classifier.attack_step": LogUniform(5e-4, 2e-2)},
    ),
)
