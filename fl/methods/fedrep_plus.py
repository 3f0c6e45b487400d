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


@dataclass(frozen=True, kw_only=True)
class FedRepPlusConfig(FedPerPlusConfig):
    """FedRep+'s settings: FedPer+'s, and how many epochs the head has."""

    classifier: LocalFedRep = LocalFedRep()


METHOD = Method(
    name="fedrep+",
    config=FedRepPlusConfig,
    assign=assign,
    run=run,
    one_shot=False,
    scores_clients=lambda settings: True,
    spaces=Spaces(local={**LOCAL, **DROPPING}),
)
