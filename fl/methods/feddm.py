"""FedDM (Xiong et al., 2022), as FedAF's paper compares with it.

In each round every client learns a few images of each of its classes, with the features of networks
near the global model. The server trains the global model on the images of all clients.
"""

from dataclasses import dataclass

from fl.clients import Clients
from fl.condensation.config import CondensationConfig
from fl.condensation.task import condense
from fl.condensation.uploads import condensed_data
from fl.errors import UserError
from fl.federation import Batch, Outcome, Server
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.methods.fedaf import FUSION, pictures
from fl.rounds import Rounds
from fl.spaces import Choice, LogUniform, Spaces, Uniform
from fl.training.local import starting_classifier
from fl.wire import prefixed


@dataclass(frozen=True, kw_only=True)
class FedDMConfig:
    """FedDM's settings, sized for a laptop."""

    condensation: CondensationConfig = CondensationConfig(rho=5.0, clip=2.0)
    fusion: FitConfig = FUSION

    def __post_init__(self) -> None:
        if self.condensation.collaboration:
            raise UserError("feddm has no collaborative term: condensation.collaboration must be 0")


SPACES = Spaces(
    local={
        "condensation.lr": LogUniform(0.1, 10.0),
        "condensation.rho": Uniform(0.0, 10.0),
        "condensation.images_per_class": Choice((10, 20, 50)),
        "fusion.lr": LogUniform(1e-3, 1e-1),
    }
)


def run(clients: Clients, server: Server, config: FedDMConfig, *, rounds: Rounds) -> Outcome:
    """One exchange per round."""
    own = config.condensation
    model = starting_classifier(own, server.problem).to(server.device)
    loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)
    data: Batch = {}
    for _ in rounds.play(clients, server, model):
        updates = clients.map(condense, broadcast=prefixed("classifier", model))
        data = condensed_data(updates, server.problem, own)
        with server.events.phase("fusion"):
            server.fit(model, data, loss=loss, config=config.fusion, stage="fusion")
    return rounds.outcome(model, synthetic=pictures(data))
