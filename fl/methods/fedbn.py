"""FedBN (Li et al., ICLR 2021): FedAvg whose clients keep their BatchNorm layers to themselves.

Affine parameters and running statistics stay; all else is averaged. A test of the averaged model
needs some BatchNorm: their average, which then travels for the test alone and is counted apart, or
each client's own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import Literal

from torch import Tensor, nn

from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors, load_prefixed, prefixed
from fl.federation import RunSpec, Task, TaskInput, Training
from fl.methods.averaging import Averaging, AveragingConfig
from fl.methods.method import Assignment, Method
from fl.methods.prototypes import LOCAL
from fl.methods.prototypes import assign as assign_prototypes
from fl.models import build_shell, copied
from fl.models.shapes import AnyBatchNorm
from fl.models.state import state_sent
from fl.rounds import Rounds
from fl.server import Evaluation, Outcome, Server
from fl.spaces import Spaces
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain, starting_classifier
from fl.training.recipe import Recipe
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalFedBN(ClassifierConfig):
    """Local training of a FedBN client: a classifier's, from its own BatchNorm."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record: the clients have the same BatchNorm."""
        return plain(self)

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return train_with_own_norms


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
        UserError: as there; or no client's model has BatchNorm; or domains are tested, and there is
            not one for each client.
    """
    if config.tested == "domain" and len(run_spec.domains) != num_clients:
        raise UserError(
            f"tested=domain needs a client for each domain, got {num_clients} clients and "
            f"{len(run_spec.domains)} domains"
        )
    assignments = assign_prototypes(config, num_clients, run_spec)
    shape, classes = run_spec.image_shape, run_spec.num_classes
    trained = {a.training for a in assignments if isinstance(a.training, ClassifierConfig)}
    models = [build_shell(t.model, shape, classes, width=t.width) for t in trained]
    if not any(map(norm_names, models)):
        names = ", ".join(sorted({training.model for training in trained}))
        raise UserError(
            f"fedbn keeps clients' BatchNorm layers, but {names} has none: take a model with "
            "BatchNorm, such as convnet, or method fedavg, which it would be without"
        )
    return assignments


def run(clients: Clients, server: Server, config: FedBNConfig, *, rounds: Rounds) -> Outcome:
    """FedAvg's rounds; what is sent has no BatchNorm, and each client goes on with its own."""
    frame = Averaging(clients, server, config, rounds)
    norms = {training: norm_names(member) for training, member in frame.model.items()}
    own: dict[str, Tensor] = {}  # by client and name, in the tests that need them
    evaluate = None
    if config.tested != "average":
        evaluate = partial(own_evaluation, clients, server, frame.model, own, config.tested)

    def start() -> dict[Training, Tensors]:
        return {
            training: {n: t for n, t in weights.items() if n not in norms[training]}
            for training, weights in frame.weights().items()
        }

    for updates in frame.play(
        own,
        start=start,
        evaluate=evaluate,
        remember=True,
        goes_to=lambda client, name: "test" if name in norms[client.training] else "server",
    ):
        for update in updates if evaluate else []:
            names = norms[update.client.training]
            own |= {f"{update.client.id}.{n}": update.tensors[n] for n in names}
    return rounds.outcome(
        frame.ensemble, figures={"bytes_for_test": sum(clients.bytes_for_test.values())}
    )


@task_of
def train_with_own_norms(inputs: TaskInput) -> Recipe:
    """Trains the weights that were sent with the client's own BatchNorm: as it remembers it, or as
    it was drawn from the seed if it takes part for the first time."""
    config = inputs.client.training
    assert isinstance(config, LocalFedBN)
    model = starting_classifier(config, inputs.run_spec)
    own = norm_names(model)
    remembered = {n: t for n, t in inputs.remembered.items() if n in own}
    weights = {**prefixed("classifier", model), **inputs.payload, **remembered}
    load_prefixed(model, weights, "classifier", sender="the server, or the client's memory,")
    return classifier_recipe(inputs, config, model.to(inputs.device))


def norm_names(model: nn.Module) -> set[str]:
    """Names of all that BatchNorm layers send, as ``classifier.*``: by the layers' types, since a
    layer may have any name."""
    names = {
        f"{layer}.{name}".removeprefix(".")
        for layer, module in model.named_modules()
        if isinstance(module, AnyBatchNorm)
        for name in module.state_dict()
    }
    return {f"classifier.{name}" for name in state_sent(model) if name in names}


def own_evaluation(
    clients: Clients,
    server: Server,
    model: Mapping[Training, nn.Module],
    own: Mapping[str, Tensor],
    tested: str,
) -> Evaluation:
    """The averaged weights with each client's own BatchNorm, in turn, but for dropped clients.

    Each is tested on the server's whole split; ``personal`` tells every client's accuracy.
    """
    found = {}
    for client in clients.members:
        if client.id in clients.dropped:
            continue
        personal = copied(model[client.training])
        prefix = f"{client.id}.classifier."
        norms = {n.removeprefix(prefix): t for n, t in own.items() if n.startswith(prefix)}
        personal.load_state_dict({**personal.state_dict(), **norms})
        found[client.id] = server.evaluate(personal)
    everyone = mean_of(list(found.values()))
    if tested == "personal":
        own_accuracies = (found[c.id].accuracy if c.id in found else None for c in clients.members)
        return replace(everyone, per_client=tuple(own_accuracies))
    domains = [found[c.id].per_domain[c.id] if c.id in found else None for c in clients.members]
    there = [accuracy for accuracy in domains if accuracy is not None]
    return replace(everyone, accuracy=mean(there), per_domain=tuple(domains))


def mean_of(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The mean of each figure; None where no evaluation has it."""

    def means(columns: Iterable[tuple[float | None, ...]]) -> tuple[float | None, ...]:
        there = ([v for v in column if v is not None] for column in columns)
        return tuple(mean(values) if values else None for values in there)

    return Evaluation(
        accuracy=mean(e.accuracy for e in evaluations),
        per_class=means(zip(*(e.per_class for e in evaluations), strict=True)),
        per_domain=means(zip(*(e.per_domain for e in evaluations), strict=True)),
    )


METHOD = Method(
    name="fedbn",
    config=FedBNConfig,
    assign=assign,
    run=run,
    one_shot=False,
    spaces=Spaces(local=LOCAL),
)
