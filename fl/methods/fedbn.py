"""FedBN (Li et al., ICLR 2021): FedAvg whose clients keep their BatchNorm layers to themselves.

Affine parameters and running statistics stay; all else is averaged. A test of the averaged model
needs some BatchNorm: their average, which then travels for the test alone and is counted apart, or
each client's own.
"""

from dataclasses import dataclass
from typing import Literal

from fl.errors import UserError
from fl.exchange import Tensors
from fl.federation import RunSpec
from fl.methods import prototypes
from fl.methods.averaging import Averaging, AveragingConfig, averaging_method
from fl.methods.method import Assignment
from fl.models.common import load_sent, norm_names
from fl.models.registry import build_shell, copied
from fl.scoring import own_evaluation
from fl.server import Evaluation
from fl.training.classifier import ClassifierConfig
from fl.training.personal import AfterFedAvg


@dataclass(frozen=True, kw_only=True)
class LocalFedBN(AfterFedAvg, ClassifierConfig):
    """Local training of a FedBN client: a classifier's, from its own BatchNorm as it remembers it,
    or as it was drawn from the seed if it takes part for the first time."""


@dataclass(frozen=True, kw_only=True)
class FedBNConfig(AveragingConfig):
    """FedBN's settings: FedAvg's, and whose BatchNorm is tested."""

    classifier: LocalFedBN = LocalFedBN(model="convnet")
    tested: Literal["average", "personal", "domain"] = "average"
    """The tested model's BatchNorm: average, of the clients that took part in the round; personal,
    each client's own, with the mean of their accuracies; domain, client k's own on domain k."""


def assign(config: FedBNConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Classifiers, as in :func:`fl.methods.prototypes.assign`.

    Raises:
        UserError: as there; or no model has BatchNorm; or there is not a domain for each client.
    """
    if config.tested == "domain" and len(run_spec.domains) != num_clients:
        found = f"{num_clients} clients and {len(run_spec.domains)} domains"
        raise UserError(f"tested=domain needs a client for each domain, got {found}")
    assignments = prototypes.assign(config, num_clients, run_spec)
    names, width = sorted({own.training.model for own in assignments}), config.classifier.width
    models = (build_shell(n, run_spec.inputs, run_spec.outputs, width=width) for n in names)
    if not any(map(norm_names, models)):
        raise UserError(
            f"fedbn keeps clients' BatchNorm layers, but {', '.join(names)} has none: use a model "
            "with BatchNorm, such as convnet, or fedavg, which is then the same"
        )
    return assignments


def run(frame: Averaging, config: FedBNConfig) -> None:
    """w_l = sum_k n_k / n w_k,l of each layer l but BatchNorm, whose w_k,l stay with client k."""
    clients, norms = frame.clients, {k: norm_names(model) for k, model in frame.model.items()}
    own: Tensors = {}  # clients' BatchNorm by id and name, in the tests that need it

    def evaluate() -> Evaluation:
        found = {}
        for client in clients.members:
            if client.id not in clients.dropped:
                model, names = copied(frame.model[client.training]), norms[client.training]
                its = {n: own[f"{client.id}.{n}"] for n in names if f"{client.id}.{n}" in own}
                load_sent(model, its)
                found[client.id] = frame.server.evaluate(model)
        return own_evaluation(found, len(clients.members), config.tested)

    tested = None if config.tested == "average" else evaluate
    for updates in frame.play(own, evaluate=tested, remember=True, own_layers=norms):
        for update in updates if tested else []:
            for name in norms[update.client.training]:
                own[f"{update.client.id}.{name}"] = update.tensors[f"classifier.{name}"]
    frame.figures["bytes_for_test"] = sum(clients.bytes_for_test.values())


METHOD = averaging_method("fedbn", FedBNConfig, run, assign=assign, any_targets=True)
