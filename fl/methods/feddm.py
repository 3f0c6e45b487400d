"""FedDM (Xiong et al., 2022), as FedAF's paper compares with it.

In each round every client learns a few images of each of its classes, with the features of networks
near the global model. The server trains the global model on the images of all clients.
"""

from dataclasses import dataclass

from fl.bounds import NotNegative, Positive, Settings
from fl.clients import Clients
from fl.condensation.task import CondensationConfig, LocalCondensation
from fl.condensation.uploads import condensed_data
from fl.exchange import prefixed
from fl.federation import Batch
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.methods.fedaf import FUSION, assign, pictures
from fl.methods.method import Method
from fl.rounds import Rounds
from fl.server import Outcome
from fl.spaces import Choice, LogUniform, Spaces, Uniform
from fl.training.classifier import starting_classifier


@dataclass(frozen=True, kw_only=True)
class FedDMConfig(Settings):
    """FedDM's settings, sized for a laptop."""

    condensation: CondensationConfig = CondensationConfig()
    rho: NotNegative = 5.0
    """Radius around the global model within which the network of each step is drawn, at width 1; it
    shrinks with the root of the number of weights."""
    clip: Positive | None = 2.0
    """Norm to which the gradient of all of a client's images together is cut."""
    fusion: FitConfig = FUSION

    @property
    def local(self) -> LocalCondensation:
        """The training record of every client."""
        return LocalCondensation.of(self.condensation, rho=self.rho, clip=self.clip)


SPACES = Spaces(
    local={
        "condensation.lr": LogUniform(0.01, 1.0),
        "rho": Uniform(0.0, 10.0),
        "condensation.images_per_class": Choice((10, 20, 50)),
        "fusion.lr": LogUniform(1e-3, 1e-1),
    }
)


def run(clients: Clients, server: Server, config: FedDMConfig, *, rounds: Rounds) -> Outcome:
    """One exchange per round."""
    own = config.local
    model = starting_classifier(own, server.run_spec).to(server.device)
    loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)
    data: Batch = {}
    for _ in rounds.play(clients, server, model):
        updates = clients.train(broadcast=prefixed("classifier", model))
        data = condensed_data(updates, server.run_spec, own)
        with server.events.phase("fusion"):
            server.fit(model, data, loss=loss, config=config.fusion, stage="fusion")
    return rounds.outcome(model, synthetic=pictures(data))


METHOD = Method(
    name="feddm", config=FedDMConfig, assign=assign, run=run, one_shot=False, spaces=SPACES
)
