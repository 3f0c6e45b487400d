"""FedDF in one shot (Lin et al., NeurIPS 2020, as FedMHO's Section 5.1.2 restricts it).

Every client trains a classifier. Each prototype's average is a student that learns the mean logits
of all clients' classifiers on unlabelled images of another data set; the students vote.
"""

from dataclasses import dataclass

from torch import Tensor

from fl.clients import Clients
from fl.data.auxiliary import AuxiliaryConfig
from fl.federation import Outcome, Server
from fl.fusion.distillation import EachMember, FusionLoss
from fl.fusion.fit import FitConfig, changeable
from fl.methods.prototypes import LOCAL, PrototypesConfig, averages
from fl.methods.uploads import load_classifier
from fl.spaces import Choice, LogUniform, Spaces
from fl.training.local import train_local


@dataclass(frozen=True, kw_only=True)
class FedDFConfig(PrototypesConfig):
    """FedDF's own settings. Epochs are sized for a laptop; upstream has 10,000 steps."""

    auxiliary: AuxiliaryConfig = AuxiliaryConfig()
    distil: FitConfig = FitConfig(epochs=10, lr=1e-3, batch_size=128, schedule="cosine", clip=5.0)


SPACES = Spaces(
    server={"distil.epochs": Choice((5, 10, 20)), "distil.lr": LogUniform(1e-4, 1e-2)},
    local=LOCAL,
    epochs="distil.epochs",
    changeable=changeable("distil"),
)


def fitted(config: FedDFConfig) -> tuple[str, ...]:
    """The architectures that the server fits: every prototype's average is a student."""
    return (*(config.prototypes or (config.classifier.model,)), config.small_model)


def run(clients: Clients, server: Server, config: FedDFConfig, *, auxiliary: Tensor) -> Outcome:
    """One round, then ensemble distillation on ``auxiliary``, (N, C, H, W) in [0, 1].

    All students train in one fit, each as if alone, so that the vote is known after each epoch.
    The last epoch counts: there is no validation data at the server, and test data select nothing.
    """
    updates = clients.map(train_local)
    with server.events.phase("fusion"):
        students = averages(updates, server)
        start = server.evaluate(students)
        teachers = (load_classifier(u, server) for u in updates)
        taught = server.teach({"images": auxiliary}, teachers)
        distil = EachMember(FusionLoss(ce_weight=0.0, kd_weight=1.0))
        result = server.fit(students, taught, loss=distil, config=config.distil, stage="fusion")
    return Outcome(
        model=students,
        start=start,
        epochs=result.epochs,
        figures={"auxiliary": {"dataset": config.auxiliary.dataset, "images": len(auxiliary)}},
    )
