"""The frame of FedAvg and its relatives: rounds of local training, averaged by prototype.

FedAvg, FedProx, FedBN, MOON, FedDyn, FedGen and pFedSD differ in the loss of a client, in what is
sent, and in what the server does beside averaging.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from fl.bounds import Settings
from fl.client_map import GoesTo, Recipient
from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors, prefixed
from fl.federation import Training, Update
from fl.fusion.aggregation import AggregationConfig
from fl.fusion.server import Server
from fl.methods.prototypes import (
    ParticipationConfig,
    PrototypesConfig,
    average_each,
    participants,
    untrained,
)
from fl.methods.uploads import MEAN
from fl.receiving import Check
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


class TrainOptions(TypedDict, total=False):
    """Options of :class:`fl.clients.MapOptions` that are the same in all rounds."""

    known: Tensors | None
    remember: bool
    goes_to: Recipient | GoesTo
    check: Check | None


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
