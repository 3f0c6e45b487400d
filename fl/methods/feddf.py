"""FedDF (Lin et al., NeurIPS 2020), in one round (as in FedMHO's Section 5.1.2) or in many.

Every client trains a classifier. Each prototype's average is a student that learns the mean logits
of all clients' classifiers on unlabelled images of another data set; the students form an ensemble.
With many rounds, as in the released code, clients continue from their prototype's student.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor

from fl.clients import Clients
from fl.data.datasets import AuxiliaryConfig
from fl.federation import Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.distillation import EachMember, FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.methods.averaging import Averaging
from fl.methods.method import Choice, LogUniform, Method, Spaces
from fl.methods.prototypes import LOCAL, PrototypesConfig, assign, average_each, untrained
from fl.methods.uploads import load_classifier
from fl.models.ensemble import Ensemble
from fl.rounds import Rounds
from fl.server import FitResult, Outcome


@dataclass(frozen=True, kw_only=True)
class FedDFConfig(AggregationConfig, PrototypesConfig):
    """FedDF's own settings. Epochs are sized for a laptop; the released code has 10,000 steps."""

    auxiliary: AuxiliaryConfig = AuxiliaryConfig()
    distil: FitConfig = FitConfig(epochs=10, lr=1e-3, batch_size=128, schedule="cosine", clip=5.0)


SPACES = Spaces(
    server={"distil.epochs": Choice((5, 10, 20)), "distil.lr": LogUniform(1e-4, 1e-2)},
    local=LOCAL,
    epochs="distil.epochs",
)


def run(
    clients: Clients, server: Server, config: FedDFConfig, *, auxiliary: Tensor, rounds: Rounds
) -> Outcome:
    """Rounds of ensemble distillation on ``auxiliary``, (N, C, H, W) in [0, 1].

    All students train in one fit, each as if alone, so that the ensemble is tested after each
    epoch. The result is that of the last epoch and the last round: the server has no validation
    data, and test data select nothing.
    """
    about = {"auxiliary": {"dataset": config.auxiliary.dataset, "images": len(auxiliary)}}
    if rounds.count > 1:
        frame = Averaging(clients, server, config, rounds)
        for updates in frame.play():
            if updates:  # else all that took part were dropped
                distil(frame.ensemble, updates, server, config, auxiliary)
        return rounds.outcome(frame.ensemble, figures=about)
    ensemble, model = untrained(clients.members, server)
    updates = clients.train()
    with server.events.phase("fusion"):
        updates = average_each(model, updates, clients, server, rule=config)
        start = server.evaluate(ensemble)
        result = distil(ensemble, updates, server, config, auxiliary)
    return Outcome(model=ensemble, start=start, epochs=result.epochs, figures=about)


def distil(
    students: Ensemble,
    updates: Sequence[Update],
    server: Server,
    config: FedDFConfig,
    auxiliary: Tensor,
) -> FitResult:
    """Trains the students, in place, on the mean logits of all uploaded classifiers."""
    teachers = (load_classifier(update, server) for update in updates)
    taught = server.teach({"images": auxiliary}, teachers)
    loss = EachMember(FusionLoss(ce_weight=0.0, kd_weight=1.0))
    return server.fit(students, taught, loss=loss, config=config.distil, stage="fusion")


METHOD = Method(
    name="feddf",
    config=FedDFConfig,
    assign=assign,
    run=run,
    supports_dp=lambda settings: True,
    one_shot=False,
    many_rounds="released",
    auxiliary=attrgetter("auxiliary"),
    spaces=SPACES,
)
