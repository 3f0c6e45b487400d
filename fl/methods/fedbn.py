"""FedBN (Li et al., ICLR 2021): FedAvg whose clients keep their BatchNorm layers to themselves.

Affine parameters and running statistics stay; all else is averaged. A test of the averaged model
needs some BatchNorm: their average, which then travels for the test alone and is counted apart, or
each client's own.
"""

from dataclasses import dataclass
from typing import Literal

from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors
from fl.federation import RunSpec, Training
from fl.fusion.server import Server
from fl.methods import prototypes
from fl.methods.averaging import Averaging, AveragingConfig, averaging_method
from fl.methods.method import Assignment
from fl.models import build_shell, copied
from fl.models.state import load_sent, norm_names
from fl.rounds import Rounds
from fl.scoring import own_evaluation
from fl.server import Evaluation, Outcome
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
            f"fedbn keeps clients' BatchNorm layers, but {', '.join(names)} has none: take a model "
            "with BatchNorm, such as convnet, or method fedavg, which it would be without"
        )
    return assignments


def run(clients: Clients, server: Server, config: FedBNConfig, *, rounds: Rounds) -> Outcome:
    """w_l = sum_k n_k / n w_k,l of each layer l but BatchNorm, whose w_k,l stay with client k."""
    frame = Averaging(clients, server, config, rounds)
    norms = {training: norm_names(model) for training, model in frame.model.items()}
    own: Tensors = {}  # clients' BatchNorm by id and name, in the tests that need it

    def start() -> dict[Training, Tensors]:
        return {
            training: {n: w for n, w in sent.items() if not is_norm(training, n)}
            for training, sent in frame.weights().items()
        }

    def is_norm(training: Training, name: str) -> bool:
        return name.removeprefix("classifier.") in norms[training]

    def evaluate() -> Evaluation:
        found = {}
        for client in clients.members:
            if client.id not in clients.dropped:
                model, names = copied(frame.model[client.training]), norms[client.training]
                its = {n: own[f"{client.id}.{n}"] for n in names if f"{client.id}.{n}" in own}
                load_sent(model, its)
                found[client.id] = server.evaluate(model)
        return own_evaluation(found, len(clients.members), config.tested)

    kept = config.tested != "average"
    for updates in frame.play(
        own,
        start=start,
        evaluate=evaluate if kept else None,
        remember=True,
        goes_to=lambda client, name: "test" if is_norm(client.training, name) else "server",
    ):
        for update in updates if kept else []:
            for name in norms[update.client.training]:
                own[f"{update.client.id}.{name}"] = update.tensors[f"classifier.{name}"]
    figures = {"bytes_for_test": sum(clients.bytes_for_test.values())}
    return rounds.outcome(frame.ensemble, figures=figures)


METHOD = averaging_method("fedbn", FedBNConfig, run, assign=assign, any_targets=True)
