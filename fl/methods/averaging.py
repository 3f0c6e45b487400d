"""The frame of FedAvg and its relatives: rounds of local training, averaged by prototype.

FedAvg, FedProx, FedBN, MOON, FedDyn, FedGen and pFedSD differ in the loss of a client, in what is
sent, and in what the server does beside averaging.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, Literal, NamedTuple

import torch
from torch import Tensor

from fl.bounds import Settings
from fl.client_map import GoesTo, Recipient
from fl.clients import Clients, trained
from fl.errors import UserError
from fl.exchange import Tensors, check_forms, prefixed
from fl.federation import Client, RunSpec, Training, Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.server import Server
from fl.json_files import JsonObject
from fl.methods.method import Distribution, Method, Spaces
from fl.methods.prototypes import (
    LOCAL,
    ParticipationConfig,
    PrototypesConfig,
    assign,
    average_each,
    participants,
    untrained,
)
from fl.methods.uploads import MEAN
from fl.models.common import parameters_sent
from fl.rounds import Rounds
from fl.server import Evaluation, Outcome


@dataclass(frozen=True, kw_only=True)
class AveragingConfig(AggregationConfig, ParticipationConfig, PrototypesConfig):
    """How the server averages, beside the settings of its clients."""

    weighting: Literal["samples", "uniform"] | None = None
    """Weights of the average: the clients' numbers of samples, or all alike. Default: samples in
    many rounds, as McMahan et al. have it; uniform in one, as FedMHO has it."""

    def check_further(self) -> None:
        """``weighting`` by samples goes with a rule that can weight clients."""
        super().check_further()
        if self.weighting == "samples" and not self.weights_clients:
            raise UserError(
                f"weighting must be uniform: aggregate {self.aggregate} counts all clients alike"
            )

    def by_samples(self, rounds: int) -> bool:
        """Whether clients are weighted by their samples in a run of so many rounds."""
        return (self.weighting or ("samples" if rounds > 1 else "uniform")) == "samples"


class Parameter(NamedTuple):
    """A trained parameter of a prototype."""

    training: Training
    """The prototype: the training record of its clients."""
    name: str
    key: str
    """Its name among the parameters of all prototypes."""
    mean: Tensor
    """Of the average: a change of it is one of the average."""


class Averaging:
    """A run of such a method, whose function plays the rounds::

    for updates in frame.play():
        ...  # what the server does after the average
    """

    def __init__(self, clients: Clients, server: Server, config: Settings, rounds: Rounds) -> None:
        """``config``: has more to say where it is a :class:`ParticipationConfig`, an
        :class:`fl.fusion.aggregation.AggregationConfig` or an :class:`AveragingConfig`."""
        self.clients, self.server, self.rounds, self._config = clients, server, rounds, config
        self.ensemble, self.model = untrained(clients.members, server)
        """The averages, and each by its prototype: by the training record of its clients."""
        self.chosen: list[int] = []
        """Ids of the clients that take part in this round."""
        self.start: dict[Training, Tensors] = {}
        """What the clients of each prototype are sent in this round, or know in the first one."""
        self.figures: JsonObject = {}
        """Of the outcome."""

    @property
    def there(self) -> Sequence[Client]:
        """All but the newcomers, who take part in no round."""
        members = self.clients.members
        return members[: len(members) - getattr(self._config, "newcomers", 0)]

    def sent(self, **beside: Tensors) -> dict[Training, Tensors]:
        """Each prototype's average, ``classifier.*``, and ``NAME.*`` of each parameter from further
        tensors by key."""
        found = {training: prefixed("classifier", own) for training, own in self.model.items()}
        for training, name, key, _ in self.parameters() if beside else ():
            found[training] |= {f"{what}.{name}": own[key] for what, own in beside.items()}
        return found

    def parameters(self) -> Iterator[Parameter]:
        """All that the clients train: what is averaged, but buffers."""
        for i, (training, model) in enumerate(self.model.items()):
            for name, mean in parameters_sent(model).items():
                yield Parameter(training, name, f"{i}.{name}", mean)

    def zeros(self) -> Tensors:
        """A zero for each parameter, by key."""
        return {key: torch.zeros_like(mean) for *_, key, mean in self.parameters()}

    def moves(
        self, updates: Sequence[Update]
    ) -> Iterator[tuple[Parameter, Tensor, list[Update], int]]:
        """What the round did to each parameter, but to those whose clients were all absent.

        ``updates``: as :meth:`play` yields them; the average is made of them.

        Yields:
            The parameter, what its clients were sent of it, their updates, and how many of its
            clients take part in some round, with those that did not in this one.
        """
        own: dict[Training, list[Update]] = {training: [] for training in self.model}
        for update in updates:
            own[update.client.training].append(update)
        clients = Counter(client.training for client in self.there)
        for parameter in self.parameters():
            training = parameter.training
            if own[training]:
                start = self.start[training][f"classifier.{parameter.name}"]
                yield parameter, start, own[training], clients[training]

    def play(
        self,
        memory: Tensors | None = None,
        *,
        known: Tensors | None = None,
        weight: Callable[[Update], float] | None = None,
        start: Callable[[], dict[Training, Tensors]] | None = None,
        evaluate: Callable[[], Evaluation] | None = None,
        remember: bool = False,
        also: Mapping[str, Recipient] | None = None,
        own_layers: Mapping[Training, Set[str]] | None = None,
    ) -> Iterator[list[Update]]:
        """Plays the rounds; yields the updates of each, when the averages are made of them.

        Args:
            memory: as of :meth:`fl.rounds.Rounds.play`.
            known: what the clients know beside what they are sent.
            weight: of a client in the average; without it as ``weighting`` says.
            start: gives what the clients are sent in this round; without it the averages.
            evaluate: as of :meth:`fl.rounds.Rounds.play`.
            remember: whether clients remember what they trained.
            also: by name for whom ``NAME.*`` of each trained parameter is, which clients upload
                beside the weights. What is for the client itself it remembers; the server keeps the
                sum of all clients', so none may be dropped.
            own_layers: names of each prototype's weights that clients are not sent, and upload for
                the test alone.

        Raises:
            UserError: the run may drop clients, whose part would stay in the server's sum.
        """
        clients, server, config = self.clients, self.server, self._config
        kept = [name for name, recipient in (also or {}).items() if recipient == "client"]
        if kept:
            self._refuse_drops(kept[0])
        goes_to: Recipient | GoesTo = "server"
        if also or own_layers:
            goes_to = partial(recipient_of, also or {}, own_layers or {})
        part = config if isinstance(config, ParticipationConfig) else ParticipationConfig()
        rule = config if isinstance(config, AggregationConfig) else MEAN
        for number in self.rounds.play(clients, server, self.ensemble, memory, evaluate=evaluate):
            self.chosen = participants(clients, part, number)
            self.start = start() if start else self._copied(own_layers)
            sent = {k: self.start[clients.members[k].training] for k in self.chosen}
            updates = clients.train(
                only=self.chosen,
                payloads=clients.to_send(sent),
                known=known,
                remember=remember or bool(kept),
                goes_to=goes_to,
                check=self.checked_also(*also) if also else None,
            )
            with server.events.phase("fusion"):
                weigh = weight or self._weight
                yield average_each(self.model, updates, clients, server, weight=weigh, rule=rule)

    def _refuse_drops(self, kept: str) -> None:
        if self.clients.may_drop:
            raise UserError(
                f"on_client_failure must be stop: the {kept} of a dropped client would stay in "
                "the server's sum"
            )

    def _copied(self, without: Mapping[Training, Set[str]] | None) -> dict[Training, Tensors]:
        """The averages, which do not change when the next ones are loaded."""
        out = {k: {f"classifier.{n}" for n in names} for k, names in (without or {}).items()}
        return {
            k: {n: w.clone() for n, w in own.items() if n not in out.get(k, ())}
            for k, own in self.sent().items()
        }

    def _weight(self, update: Update) -> float:
        config = self._config
        samples = isinstance(config, AveragingConfig) and config.by_samples(self.rounds.count)
        return update.client.num_samples if samples else 1

    def outcome(self) -> Outcome:
        """The ensemble of averages, and the figures."""
        return self.rounds.outcome(self.ensemble, figures=self.figures)

    def checked_also(self, *prefixes: str) -> Callable[[Update, RunSpec], None]:
        """A check that a client uploads ``prefix.*`` beside its weights, each of the form of a
        trained parameter."""

        def check(update: Update, run_spec: RunSpec) -> None:
            trained(update, run_spec)
            member = self.clients.members[update.client.id]
            expected = parameters_sent(self.model[member.training])
            for prefix in prefixes:
                check_forms(expected, update.tensors, prefix, f"client {member.id}")

        return check


def recipient_of(
    also: Mapping[str, Recipient],
    own_layers: Mapping[Training, Set[str]],
    client: Client,
    name: str,
) -> Recipient:
    """For whom a client's tensor is; see :meth:`Averaging.play`."""
    if name.removeprefix("classifier.") in own_layers.get(client.training, ()):
        return "test"
    return also.get(name.partition(".")[0], "server")


def average(frame: Averaging, config: Settings) -> None:
    """The frame alone; clients remember their last model."""
    for _ in frame.play(remember=True):
        pass


def averaging_method(
    name: str,
    config: type[Settings],
    run: Callable[Concatenate[Averaging, Any, ...], None] = average,
    *,
    server: Mapping[str, Distribution] | None = None,
    local: Mapping[str, Distribution] | None = None,
    **more: Any,
) -> Method:
    """The entry of a method that is run on the frame; ``more`` are fields of :class:`Method`.

    Its outcome is the ensemble of averages; ``start`` is of untrained prototypes. A sweep searches
    ``server``, and beside the clients' epochs and rate ``local``.
    """

    spaces = Spaces(server=server or {}, local={**LOCAL, **(local or {})})
    own = {"assign": assign, "one_shot": False, "spaces": spaces, **more}
    return Method(name=name, config=config, run=on_frame(Averaging, run), **own)


def on_frame(
    frame: Callable[..., Any], run: Callable[Concatenate[Any, Any, ...], None]
) -> Callable[..., Outcome]:
    """The function of a method that plays its rounds on a frame, which then makes the outcome."""

    @wraps(run)
    def on_its_frame(
        clients: Clients, server: Server, config: Any, *, rounds: Rounds, **inputs: Tensor
    ) -> Outcome:
        own = frame(clients, server, config, rounds)
        run(own, config, **inputs)
        return own.outcome()

    return on_its_frame
