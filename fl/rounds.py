"""The rounds of a method that has many: the method iterates over them.

Between two rounds the global model is tested, the round is measured, and all that the next rounds
depend on is saved, so that a killed run goes on after the last round it finished, to the same bits.
Nothing else happens: the clients' processes and the server's ranks stay as they are.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from fl import scoring
from fl.clients import Clients
from fl.errors import UserError
from fl.events import ClientDropped, RoundEnd, RoundsResumed, StopRounds
from fl.exchange import Tensors
from fl.fusion.checkpoints import load_tensors, save_tensors
from fl.fusion.server import Server
from fl.json_files import JsonObject, SettingValues
from fl.models.common import load_whole
from fl.models.ensemble import unwrapped
from fl.seeding import in_round, seed_for, seed_streams
from fl.server import Evaluation, Outcome, with_figures

log = logging.getLogger(__name__)

Metric = Callable[[nn.Module], float]
"""A figure of the global model."""
STATE = "round.state"
"""The file of the state after the last round."""
BYTES = ("bytes_up", "bytes_down", "bytes_peer")
"""What is counted in each round, by its name in :class:`Clients`, :class:`Round` and events."""
OF_CLIENTS = (*BYTES, "bytes_for_test", "dropped")
"""What clients have that a state keeps."""
TARGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99)
"""Accuracies to which rounds are counted."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round's results."""

    number: int
    evaluation: Evaluation
    """The global model's evaluation after the round."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The user's own figures of it."""
    seconds: dict[str, float]
    """``local``: at least one client was at work. ``server``: outside of maps, the test included.
    ``overhead``: the rest of the maps (sending, waiting for processes, storing uploads), and
    saving the state of the round before."""
    bytes_up: int
    bytes_down: int
    bytes_peer: int = 0
    """What clients sent each other."""


class Rounds:
    """The rounds of one run. A method iterates over them and returns their outcome::

    for number in rounds.play(clients, server, model):
        updates = clients.map(task, broadcast=...)
        ...  # change the model in place
    return rounds.outcome(model)
    """

    def __init__(
        self,
        count: int,
        directory: Path | None = None,
        run: str = "",
        metrics: Mapping[str, Metric] | None = None,
        stop_after: int | None = None,
        *,
        own: bool = False,
    ) -> None:
        """``count``: rounds, 1 or more; ``directory``: where to save the last state, or None;
        ``run``: all that determines the run. A state of another run is not gone on from;
        ``metrics``: the user's own figures of the global model after each round, by name;
        ``stop_after``: rounds without a higher accuracy after which there are no more;
        ``own``: the method is the user's, who may not know what is saved."""
        self.count, self._own = count, own
        self._stop_after = stop_after
        self._metrics = metrics or {}
        self.played: list[Round] = []
        self.stopped = False
        """Whether they ended before their time: by a listener, or since accuracy has settled."""
        self.start: Evaluation | None = None
        """Evaluation of the global model before the first round."""
        self._file = directory / STATE if directory else None
        self._about = f"rounds of {run}"

    def play(
        self,
        clients: Clients,
        server: Server,
        model: nn.Module | None = None,
        memory: Tensors | None = None,
        *,
        evaluate: Callable[[], Evaluation] | None = None,
        whole: bool = True,
    ) -> Iterator[int]:
        """Yields the number of each round to run, from 1, or after the last one that was saved.

        Randomness that clients and server draw by name differs from round to round.

        Args:
            clients: the run's, all of them.
            server: the run's.
            model: the global model, which the method changes in place; None for a method that
                has none, which then says how it is tested.
            memory: other tensors that the next round depends on; a resumed run replaces them.
            evaluate: tests what the round has led to; without it the global model is tested.
            whole: whether all layers of the global model are trained, as the user's metrics need.
        """
        memory = {} if memory is None else memory
        if evaluate is None:
            assert model is not None, "without a global model there is nothing to test by default"
            evaluate = partial(server.evaluate, model)
        if self._metrics and (model is None or not whole):
            why = "has none" if model is None else "trains only some of its layers"
            raise UserError(f"metrics need a global model, and this method {why}")
        self._go_on(clients, server, model, memory)
        if self.start is None:
            self.start = evaluate()
        before, saving = _Reading(clients, server), 0.0
        left = () if self.stopped else range(len(self.played) + 1, self.count + 1)
        for number in left:
            _begin(clients, server, number)
            yield number
            evaluation = evaluate()
            after = _Reading(clients, server)
            found = {} if model is None else {n: own(model) for n, own in self._metrics.items()}
            self.played.append(_round(number, evaluation, found, before, after, saving))
            try:
                server.events.emit(self._event(model))
            except StopRounds:
                self.stopped = True
            self.stopped |= self._has_settled()
            self._save(clients, server, model, memory)
            clients.end_round()
            if self.stopped:
                return
            before, saving = after, time.perf_counter() - after.now

    def _has_settled(self) -> bool:
        """Whether no round of the last ``stop_after`` was more accurate than those before."""
        accuracies = [r.evaluation.accuracy for r in self.played]
        if self._stop_after is None or len(accuracies) <= self._stop_after:
            return False
        return max(accuracies[-self._stop_after :]) <= max(accuracies[: -self._stop_after])

    def outcome(
        self,
        model: nn.Module | None,
        *,
        synthetic: Mapping[str, Tensor] | None = None,
        figures: SettingValues | None = None,
    ) -> Outcome:
        """The method's outcome: an evaluation per round, and each round's figures."""
        assert self.start is not None, "the rounds were not played"
        evaluations = [r.evaluation for r in self.played]
        own = {
            **scoring.figures(evaluations),
            "per_round": [_figures(r) for r in self.played],
            **({"stopped_after": len(self.played)} if self.stopped else {}),
            "rounds_to": rounds_to([e.accuracy for e in evaluations]),
        }
        return Outcome(
            model=model,
            start=self.start,
            epochs=evaluations,
            synthetic=dict(synthetic or {}),
            figures=with_figures(own, dict(figures or {})),
        )

    def _event(self, model: nn.Module | None) -> RoundEnd:
        """What listeners hear of the last round."""
        *earlier, played = self.played
        accuracy = played.evaluation.accuracy
        return RoundEnd(
            rounds=self.count,
            took=played.seconds,
            round=played.number,
            accuracy=accuracy,
            **{name: getattr(played, name) for name in BYTES},
            client_accuracy=list(played.evaluation.per_client),
            metrics=dict(played.metrics),
            best=all(accuracy > r.evaluation.accuracy for r in earlier),
            model=None if model is None else unwrapped(model),
        )

    def _save(
        self, clients: Clients, server: Server, model: nn.Module | None, memory: Tensors
    ) -> None:
        if self._file is None:
            return
        state = {
            "model": model.state_dict() if model else {},
            "memory": memory,
            "start": asdict(self.start) if self.start else None,
            "played": [asdict(r) for r in self.played],
            "stopped_of": self.count if self.stopped else None,
            **{name: getattr(clients, name) for name in OF_CLIENTS},
            "remembered": clients.remembered,
            "seconds": server.events.seconds(),
        }
        save_tensors(self._file, state, self._about)

    def _go_on(
        self, clients: Clients, server: Server, model: nn.Module | None, memory: Tensors
    ) -> None:
        """Restores the state saved after the last round, if there is one."""
        state = load_tensors(self._file, self._about) if self._file else None
        if state is None:
            return
        if model:
            load_whole(model, state["model"])
        if self._own and not state["memory"]:
            log.warning(
                "only the method's model is restored: tensors that it keeps in variables between "
                "rounds are lost; save them with rounds.play(..., memory=tensors)"
            )
        memory.clear()
        memory.update({name: t.to(server.device) for name, t in state["memory"].items()})
        self.start = Evaluation(**state["start"])
        self.played = [
            Round(**{**r, "evaluation": Evaluation(**r["evaluation"])}) for r in state["played"]
        ]
        self.stopped = state.get("stopped_of") == self.count or self._has_settled()
        for name in OF_CLIENTS:
            getattr(clients, name).update(state.get(name, {}))
        clients.recall(state.get("remembered", {}))
        server.events.go_on(state.get("seconds", {}))
        clients.round = server.round = len(self.played)
        clients.end_round()  # in case the run was killed just before that
        server.events.emit(RoundsResumed(round=len(self.played), rounds=self.count))
        for client, reason in clients.dropped.items():
            server.events.emit(ClientDropped(client=client, reason=reason))


def rounds_to(accuracies: Sequence[float]) -> dict[str, int]:
    """The first round that reached each of the :data:`TARGETS`, of those that were reached.

    >>> rounds_to([0.31, 0.52, 0.48, 0.74])
    {'0.3': 1, '0.4': 2, '0.5': 2, '0.6': 4, '0.7': 4}
    """
    return {
        str(target): next(n for n, a in enumerate(accuracies, start=1) if a >= target)
        for target in TARGETS
        if max(accuracies) >= target
    }


def _begin(clients: Clients, server: Server, number: int) -> None:
    """A round begins: a method of the user's may draw in it, to the same numbers after a resume."""
    clients.round = server.round = number
    seed_streams(seed_for(server.run_spec.seed, in_round("method", number)))


class _Reading:
    """The clocks and byte counts at one moment."""

    def __init__(self, clients: Clients, server: Server) -> None:
        self.now = time.perf_counter()
        self.mapping = server.events.phase_seconds.get("local", 0.0)
        self.busy = clients.busy_seconds
        self.bytes = {name: sum(getattr(clients, name).values()) for name in BYTES}


def _round(
    number: int,
    evaluation: Evaluation,
    metrics: Mapping[str, float],
    before: _Reading,
    after: _Reading,
    saving: float,
) -> Round:
    mapping = after.mapping - before.mapping
    local = min(mapping, after.busy - before.busy)
    seconds = {
        "local": local,
        "server": after.now - before.now - saving - mapping,
        "overhead": mapping - local + saving,
    }
    return Round(
        number=number,
        evaluation=evaluation,
        metrics=metrics,
        seconds={name: round(s, 4) for name, s in seconds.items()},
        **{name: after.bytes[name] - before.bytes[name] for name in BYTES},
    )


def _figures(played: Round) -> JsonObject:
    return {
        "round": played.number,
        "accuracy": played.evaluation.accuracy,
        "seconds": played.seconds,
        **{name: getattr(played, name) for name in BYTES},
        **({"metrics": dict(played.metrics)} if played.metrics else {}),
    }
