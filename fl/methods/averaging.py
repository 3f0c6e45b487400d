"""The frame of FedAvg and its relatives: rounds of local training, averaged by prototype.

FedAvg, FedProx, FedBN, MOON, FedDyn, FedGen and pFedSD differ in the loss of a client, in what is
sent, and in what the server does beside averaging.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from torch import Tensor

from fl.bounds import Settings
from fl.client_map import GoesTo, Recipient
from fl.clients import Clients, trained
from fl.errors import UserError
from fl.exchange import Tensors, check_forms, prefixed
from fl.federation import RunSpec, Training, Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.server import Server
from fl.methods.method import Method
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
from fl.models.state import parameters_sent
from fl.receiving import Check
from fl.rounds import Rounds
from fl.server import Evaluation, Outcome
from fl.spaces import Distribution, Spaces


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


class TrainOptions(TypedDict, total=False):
    """Options of :class:`fl.clients.MapOptions` that are the same in all rounds."""

    known: Tensors | None
    remember: bool
    goes_to: Recipient | GoesTo
    check: Check | None


class Parameter(NamedTuple):
    """A trained parameter of a prototype."""

    training: Training
    """The prototype: the training record of its clients."""
    name: str
    key: str
    """Its name among the parameters of all prototypes."""
    mean: Tensor
    """Of the average, which changes with it."""


class Move(NamedTuple):
    """What a round did to a parameter."""

    key: str
    name: str
    start: Tensor
    """What the clients were sent."""
    mean: Tensor
    """What the average has: a change of it is one of the average."""
    updates: Sequence[Update]
    """Of the prototype's clients that the average is made of, one at least."""
    clients: int
    """The prototype's clients that take part in some round, with those that did not in this one."""


class Averaging:
    """A run of the frame::

    frame = Averaging(clients, server, config, rounds)
    for updates in frame.play():
        ...  # what the server does after the average
    return rounds.outcome(frame.ensemble)
    """

    def __init__(self, clients: Clients, server: Server, config: Settings, rounds: Rounds) -> None:
        """``config``: has more to say where it is a :class:`ParticipationConfig`, an
        :class:`fl.fusion.aggregation.AggregationConfig` or an :class:`AveragingConfig`."""
        self._clients, self._server, self._config, self._rounds = clients, server, config, rounds
        self.ensemble, self.model = untrained(clients.members, server)
        """The averages, and each by its prototype: by the training record of its clients."""
        self.chosen: list[int] = []
        """Ids of the clients that take part in this round."""
        self.start: dict[Training, Tensors] = {}
        """What the clients of each prototype are sent in this round, or know in the first one."""

    def weights(self) -> dict[Training, Tensors]:
        """Each prototype's average, ``classifier.*``."""
        return {training: prefixed("classifier", own) for training, own in self.model.items()}

    def copied_weights(self) -> dict[Training, Tensors]:
        """The same, which do not change when the next averages are loaded."""
        return {
            training: {name: tensor.clone() for name, tensor in own.items()}
            for training, own in self.weights().items()
        }

    def parameters(self) -> Iterator[Parameter]:
        """All that the clients train: what is averaged, but buffers."""
        for i, (training, model) in enumerate(self.model.items()):
            for name, mean in parameters_sent(model).items():
                yield Parameter(training, name, f"{i}.{name}", mean)

    def moves(self, updates: Sequence[Update]) -> Iterator[Move]:
        """What the round did to each parameter; nothing to one whose clients were all absent.

        ``updates``: as :meth:`play` yields them; the average is made of them.
        """
        own: dict[Training, list[Update]] = {training: [] for training in self.model}
        for update in updates:
            own[update.client.training].append(update)
        newcomers = getattr(self._config, "newcomers", 0)  # who take part in no round
        there = self._clients.members[: len(self._clients.members) - newcomers]
        clients = Counter(client.training for client in there)
        for training, name, key, mean in self.parameters():
            if own[training]:
                start = self.start[training][f"classifier.{name}"]
                yield Move(key, name, start, mean, own[training], clients[training])

    def refuse_drops(self, what: str) -> None:
        """For a method whose server keeps a sum of what each client has sent.

        Raises:
            UserError: the run may drop clients, whose part would stay in it.
        """
        if self._clients.may_drop:
            raise UserError(
                f"on_client_failure drop: the {what} of a dropped client would stay in the "
                "server's sum; allowed is stop"
            )

    def also(self, *prefixes: str) -> Check:
        """A check that a client uploads ``prefix.*`` beside its weights, each of the form of a
        trained parameter."""

        def check(update: Update, run_spec: RunSpec) -> None:
            trained(update, run_spec)
            member = self._clients.members[update.client.id]
            expected = parameters_sent(self.model[member.training])
            for prefix in prefixes:
                check_forms(expected, update.tensors, prefix, f"client {member.id}")

        return check

    def play(
        self,
        memory: Tensors | None = None,
        *,
        weight: Callable[[Update], float] | None = None,
        start: Callable[[], dict[Training, Tensors]] | None = None,
        evaluate: Callable[[], Evaluation] | None = None,
        **options: Unpack[TrainOptions],
    ) -> Iterator[list[Update]]:
        """Plays the rounds; yields the updates of each, when the averages are made of them.

        Args:
            memory: as of :meth:`fl.rounds.Rounds.play`.
            weight: of a client in the average; without it as ``weighting`` says.
            start: gives what the clients are sent in this round; without it the averages.
            evaluate: as of :meth:`fl.rounds.Rounds.play`.
            options: of the clients' training.
        """
        clients, server, config = self._clients, self._server, self._config
        part = config if isinstance(config, ParticipationConfig) else ParticipationConfig()
        rule = config if isinstance(config, AggregationConfig) else MEAN
        if weight is None:
            samples = isinstance(config, AveragingConfig) and config.by_samples(self._rounds.count)
            weight = (lambda update: update.client.num_samples) if samples else (lambda update: 1)
        for number in self._rounds.play(clients, server, self.ensemble, memory, evaluate=evaluate):
            self.chosen = participants(clients, part, number)
            self.start = (start or self.copied_weights)()
            sent = {k: self.start[clients.members[k].training] for k in self.chosen}
            updates = clients.train(only=self.chosen, payloads=clients.to_send(sent), **options)
            with server.events.phase("fusion"):
                yield average_each(self.model, updates, clients, server, weight=weight, rule=rule)


def run(clients: Clients, server: Server, config: AveragingConfig, *, rounds: Rounds) -> Outcome:
    """The frame alone; clients remember their last model. ``start`` is of untrained prototypes."""
    frame = Averaging(clients, server, config, rounds)
    for _ in frame.play(remember=True):
        pass
    return rounds.outcome(frame.ensemble)


def averaging_method(
    name: str,
    config: type[Settings],
    run: Callable[..., Outcome] = run,
    *,
    server: Mapping[str, Distribution] | None = None,
    local: Mapping[str, Distribution] | None = None,
    **more: Any,
) -> Method:
    """The entry of a method of many rounds whose clients train classifiers for the server; ``more``
    are fields of :class:`Method`.

    A sweep searches ``server``, and beside the clients' epochs and rate ``local``.
    """
    spaces = Spaces(server=server or {}, local={**LOCAL, **(local or {})})
    own = {"assign": assign, "one_shot": False, "spaces": spaces, **more}
    return Method(name=name, config=config, run=run, **own)
