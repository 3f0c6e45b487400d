"""FedProx (Li et al., MLSys 2020): FedAvg with clients held near the model that was sent.

A client minimises its loss plus mu/2 |w - w_global|^2 (``classifier.proximal``); everything else is
:mod:`fl.methods.fedavg`.
"""

from dataclasses import dataclass

from fl.methods import fedavg
from fl.methods.fedavg import FedAvgConfig, run
from fl.methods.method import Method
from fl.methods.prototypes import LOCAL, assign
from fl.spaces import LogUniform, Spaces
from fl.training.classifier import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class FedProxConfig(FedAvgConfig):
    """FedProx's settings: FedAvg's, with a proximal term."""

    classifier: ClassifierConfig = ClassifierConfig(proximal=0.01)


METHOD = Method(
    name="fedprox",
    config=FedProxConfig,
    assign=assign,
    run=run,
    any_targets=True,
    supports_dp=lambda settings: True,
    one_shot=False,
    scores_clients=fedavg.METHOD.scores_clients,
    spaces=Spaces(local={**LOCAL, "classifier.proximal": LogUniform(1e-3, 1.0)}),
)
