"""The common parts of FedAvg, FedDF, DENSE and Co-Boosting: all clients train classifiers.

Their clients' training records are the same for the same settings, so all four reuse one set of
uploads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar

from torch import nn

from fl.bounds import Number, OneOf, Settings, Width, Within
from fl.clients import Clients
from fl.errors import ClientFailed, UserError
from fl.federation import Client, RunSpec, Training, Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.server import Server
from fl.methods.method import Assignment, Choice, Distribution, LogUniform
from fl.methods.uploads import (
    MEAN,
    combine,
    combine_classifiers,
    load_classifier,
    untrained_classifier,
)
from fl.models.ensemble import Ensemble
from fl.models.registry import CLASSIFIERS
from fl.seeding import in_round, numpy_generator
from fl.training.classifier import ClassifierConfig

Architectural = TypeVar("Architectural", bound=ClassifierConfig)

# Which clients take part in a round, for methods of many rounds.


@dataclass(frozen=True, kw_only=True)
class ParticipationConfig(Settings):
    """How many clients take part."""

    participation: Annotated[float, Within(0, 1, "(]")] = 1.0
    """Share of the clients that take part in a round, at least one; drawn anew in each round."""
    newcomers: Number = 0
    """Clients, the last ones, that take part in no round. Where clients are scored they are too: by
    the model that is then theirs (fedavg with tested tuned: trained once more by the client)."""


def num_participants(share: float, num_clients: int) -> int:
    """How many of so many clients take part in a round, if none was dropped."""
    return max(1, round(share * num_clients))


def participants(clients: Clients, config: ParticipationConfig, number: int) -> list[int]:
    """Ids of the clients that take part in this round, ascending.

    Raises:
        ClientFailed: all that could were dropped.
    """
    share, there = config.participation, len(clients.members) - config.newcomers
    able = [c.id for c in clients.members[:there] if c.id not in clients.dropped]
    if not able:  # newcomers alone
        reason = f"{clients.dropped[0]}; no client that takes part is left"
        raise ClientFailed(0, clients.members[0].model, reason)
    if share == 1:
        return able
    stream = numpy_generator(clients.run_spec.seed, in_round("participation", number))
    count = num_participants(share, there)
    return sorted(stream.choice(able, min(count, len(able)), replace=False).tolist())


@dataclass(frozen=True, kw_only=True)
class PrototypesConfig(Settings):
    """Which client trains which classifier (Table 1)."""

    num_large: Number | None = None
    """Clients with a large classifier, the first ones; the rest have the small one. Default: half,
    or all where both are one model and small_width is not set. For Table 8's homogeneous form: all.
    """
    prototypes: tuple[Annotated[str, OneOf(CLASSIFIERS)], ...] = ()
    """Architectures assigned in turn to the large clients; the first is the global model's.
    Default: classifier.model for all."""
    small_model: Annotated[str, OneOf(CLASSIFIERS)] = "cnn"
    """Classifier architecture of the small clients."""
    small_width: Width = 1.0
    """Factor on its channels; all its other settings are those of classifier."""
    classifier: ClassifierConfig = ClassifierConfig()


LOCAL: dict[str, Distribution] = {
    "classifier.epochs": Choice((10, 50, 200)),
    "classifier.lr": LogUniform(1e-3, 2e-2),
}
"""A sweep's space of client training, for all methods whose clients train classifiers."""


def assign(config: PrototypesConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Large classifiers for client 0 to num_large - 1, small ones for the rest.

    Raises:
        UserError: no large client or more than clients, a model that cannot take these images, or
            too few clients with one for the rule that aggregates them.
    """
    _check_newcomers(config, num_clients)
    large = config.num_large
    if large is None:
        one = config.classifier.model == config.small_model and not config.prototypes
        unset = config.small_width == PrototypesConfig.small_width
        large = num_clients if one and unset else max(1, num_clients // 2)
    if not 0 < large <= num_clients:
        raise UserError(f"num_large must be in 1 to {num_clients}, the clients, got {large}")
    small = replace(config.classifier, model=config.small_model, width=config.small_width)
    trainings = dealt(config.classifier, config.prototypes, large, "prototypes", "large clients")
    trainings += [small] * (num_clients - large)
    for training in dict.fromkeys(trainings):
        training.check(run_spec)
    if isinstance(config, AggregationConfig):
        _check_rule(config, trainings)
    return [Assignment("classifier", training) for training in trainings]


def assign_all(config: Any, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains ``config.classifier``, or the ``config.models`` in turn.

    Raises:
        UserError: the classifier cannot take such samples, or there are more models than clients.
    """
    _check_newcomers(config, num_clients)
    names = getattr(config, "models", ())
    trainings = dealt(config.classifier, names, num_clients, "models", "clients")
    for training in dict.fromkeys(trainings):
        training.check(run_spec)
    return [Assignment("classifier", training) for training in trainings]


def dealt(
    config: Architectural, names: Sequence[str], clients: int, setting: str, who: str
) -> list[Architectural]:
    """The training record of each client, with these architectures in turn; with the record's own
    where there are none.

    Raises:
        UserError: more names of the ``setting`` than clients; ``who`` says which clients.
    """
    if len(names) > clients:
        raise UserError(f"{len(names)} {setting} need at least as many {who}, got {clients}")
    names = names or (config.model,)
    return [replace(config, model=names[k % len(names)]) for k in range(clients)]


def _check_newcomers(config: Any, num_clients: int) -> None:
    if getattr(config, "newcomers", 0) >= num_clients:
        raise UserError(f"newcomers must be in 0 to {num_clients - 1}, below the clients")


def _check_rule(config: AggregationConfig, trainings: Sequence[Training]) -> None:
    """Refuses a rule for which too few clients with one prototype may take part in a round."""
    part = config if isinstance(config, ParticipationConfig) else ParticipationConfig()
    there = len(trainings) - part.newcomers
    absent = len(trainings) - num_participants(part.participation, there)
    for training in dict.fromkeys(trainings):
        config.check_clients(trainings.count(training) - absent)


def by_prototype(updates: Sequence[Update]) -> list[list[Update]]:
    """The updates by prototype: only clients with the same training record can be averaged."""
    groups: dict[object, list[Update]] = {}
    for update in updates:
        groups.setdefault(update.client.training, []).append(update)
    return list(groups.values())


def average_each(
    model: Mapping[Training, nn.Module],
    updates: Sequence[Update],
    clients: Clients,
    server: Server,
    *,
    weight: Callable[[Update], float] = lambda update: 1,
    rule: AggregationConfig = MEAN,
    fuse: Callable[[nn.Module, Sequence[Update]], object] | None = None,
) -> list[Update]:
    """Loads each prototype's average into its model; a model without an update does not change.

    ``weight``: of a client in the mean, all alike without it; ``rule``: what is done in its place;
    ``fuse``: loads what else is made of a prototype's clients.

    Returns:
        The updates that were averaged; see :func:`fl.methods.uploads.combine`.

    Raises:
        ClientFailed: all clients of a prototype were dropped, so its model would stay untrained; or
            an average answers NaN, and the run is to stop.
    """
    for training in model:
        refuse_without(training, clients)
    left: list[Update] = []
    for group in by_prototype(updates):
        average = model[group[0].client.training]
        if fuse is None:
            left += combine_classifiers(average, group, clients, server, rule, weight)
        else:
            left += combine(average, group, clients, server, partial(fuse, average))
    return sorted(left, key=lambda update: update.client.id)


def refuse_without(training: Training, clients: Clients) -> None:
    """Raises `ClientFailed` where all clients of a prototype were dropped."""
    own = [client for client in clients.members if client.training == training]
    if all(client.id in clients.dropped for client in own):
        reason = f"{clients.dropped[own[-1].id]}; no client with its model is left"
        raise ClientFailed(own[-1].id, own[-1].model, reason)


def prototypes(members: Iterable[Client]) -> list[Training]:
    """The different training records, in the clients' order."""
    return [*dict.fromkeys(client.training for client in members)]


def untrained(
    members: Iterable[Client], server: Server
) -> tuple[Ensemble, dict[Training, nn.Module]]:
    """The ensemble of the :func:`prototypes`, with the weights from which the clients first start.

    And the ensemble's members by the training record of their clients.
    """
    trainings = prototypes(members)
    ensemble = Ensemble(untrained_classifier(training, server) for training in trainings)
    ensemble = ensemble.to(server.device).eval()
    return ensemble, dict(zip(trainings, ensemble.members, strict=True))


def all_classifiers(updates: Sequence[Update], server: Server) -> Ensemble:
    """The clients' own classifiers as one teacher, frozen."""
    members: list[nn.Module] = [load_classifier(update, server) for update in updates]
    return Ensemble(members).to(server.device).eval().requires_grad_(False)
