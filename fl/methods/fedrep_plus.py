"""FedRep+ (FedD2S, Section IV-A): FedRep whose clients share ever fewer of the first layers.

The rounds are FedPer+'s; a client trains as FedRep's, and as long as it shares its whole model, and
so has no head, all its epochs train that.
"""

from dataclasses import dataclass

from fl.methods.fedper_plus import DROPPING, FedPerPlusConfig, assign, run
from fl.methods.fedrep import LocalFedRep
from fl.methods.method import Method
from fl.methods.personal import LOCAL
from fl.spaces import Spaces
from fl.training.classifier import ClassifierConfig, plain


@dataclass(frozen=True, kw_only=True)
class LocalFedRepPlus(LocalFedRep):
    """Local training of a FedRep+ client: FedRep's, but for the first round."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record: the clients share all layers."""
        return plain(self)


@dataclass(frozen=True, kw_only=True)
class FedRepPlusConfig(FedPerPlusConfig):
    """FedRep+'s settings: FedPer+'s, and how many epochs the head has."""

    classifier: LocalFedRepPlus = LocalFedRepPlus()


METHOD = Method(
    name="fedrep+",
    config=FedRepPlusConfig,
    assign=assign,
    run=run,
    one_shot=False,
    scores_clients=lambda settings: True,
    spaces=Spaces(local={**LOCAL, **DROPPING}),
)
