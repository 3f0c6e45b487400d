"""The common parts of methods whose clients keep models of their own and are scored on their own.

All clients have one architecture, unless the method says otherwise. In the first round they train
by FedAvg's record where what they do is FedAvg's: one stored model then serves all these methods.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate

import torch
from torch import Tensor, nn

from fl.bounds import Count, OneOf, Settings
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import RunSpec, Update
from fl.fusion.aggregation import average_states
from fl.fusion.server import Server
from fl.inputs import Inputs
from fl.methods.averaging import Averaging, on_frame
from fl.methods.method import Choice, Distribution, LogUniform, Method, Spaces
from fl.methods.prototypes import ParticipationConfig, assign_all, participants
from fl.models.common import load_whole
from fl.models.layered import Layers
from fl.models.registry import CLASSIFIERS
from fl.receiving import sent
from fl.rounds import Rounds
from fl.server import Evaluation, Outcome
from fl.training.classifier import starting_classifier
from fl.training.personal import PersonalTraining, own_model


@dataclass(frozen=True, kw_only=True)
class PersonalConfig(ParticipationConfig):
    """How many clients take part, and how all of them train."""

    classifier: PersonalTraining = PersonalTraining()


@dataclass(frozen=True, kw_only=True)
class AnyModelsConfig(PersonalConfig):
    """The same where clients may have different architectures."""

    models: tuple[Annotated[str, OneOf(CLASSIFIERS)], ...] = ()
    """Architectures, assigned to the clients in turn. Default: classifier.model for all."""


LOCAL: dict[str, Distribution] = {
    "classifier.epochs": Choice((1, 2, 4, 8)),
    "classifier.lr": LogUniform(1e-3, 3e-2),
}
"""A sweep's space of client training, for all methods whose clients keep models of their own."""


class Personal:
    """A run of such a method, whose function plays the rounds::

    for chosen in frame.play():
        ...  # what these clients do, and the server
    """

    def __init__(
        self, clients: Clients, server: Server, config: PersonalConfig, rounds: Rounds
    ) -> None:
        self.clients, self.server, self.rounds, self._config = clients, server, rounds, config
        self.model: nn.Module | None = None
        """The server's model, if it has one: the outcome's."""
        self.memory: dict[str, Tensor] = {
            "participations": torch.zeros(len(clients.members), dtype=torch.int64)
        }
        """How often each client has taken part, Z_n(r) of FedD2S's Eq. 6, and what else the next
        round depends on."""

    def play(self, model: nn.Module | None = None, **options: Any) -> Iterator[list[int]]:
        """Plays the rounds; yields the ids of the clients that take part in each, once counted.

        ``model``: the server's; ``options``: of :meth:`fl.rounds.Rounds.play`. Without these it
        trains some layers, and clients are scored by the models that they remember.
        """
        self.model, options = model, {"evaluate": self._score, "whole": False, **options}
        for number in self.rounds.play(self.clients, self.server, model, self.memory, **options):
            chosen = participants(self.clients, self._config, number)
            self.memory["participations"][chosen] += 1
            yield chosen

    def average(self, **options: Any) -> Iterator[Averaging]:
        """Plays the rounds of FedAvg; yields its frame in each, when its uniform mean is made.

        ``options``: of :meth:`fl.methods.averaging.Averaging.play`.
        """
        frame = Averaging(self.clients, self.server, self._config, self.rounds)
        (self.model,) = frame.model.values()
        for _ in frame.play(self.memory, evaluate=self._score, **options):
            self.memory["participations"][frame.chosen] += 1
            yield frame

    def taken(self, client: int) -> int:
        """How often the client has taken part, in this round too."""
        return int(self.memory["participations"][client])

    def _score(self) -> Evaluation:
        return self.clients.score(own_model)

    def outcome(self) -> Outcome:
        """With what FedAvg's clients would have sent in the same rounds: a model each time."""
        clients, spec = self.clients.members, self.clients.run_spec
        sent = sum(self.taken(c.id) * c.training.upload_bytes(spec) for c in clients)
        return self.rounds.outcome(self.model, figures={"fedavg_bytes_up": sent})


def personal_method(
    name: str,
    config: type[PersonalConfig],
    run: Callable[Concatenate[Personal, Any, ...], None],
    *,
    local: Mapping[str, Distribution] | None = None,
    **more: Any,
) -> Method:
    """The entry of a method that is run on the frame; ``more`` are fields of :class:`Method`.

    A sweep searches beside the clients' epochs and rate ``local``.
    """

    own = {"assign": assign_all, "scores_clients": lambda settings: True, **more}
    spaces = Spaces(local={**LOCAL, **(local or {})})
    run_on_frame = on_frame(Personal, run)
    return Method(name=name, config=config, run=run_on_frame, one_shot=False, spaces=spaces, **own)


def checked_labels(update: Update, num_classes: int) -> Tensor:
    """The labels of all of a client's samples, int64 (n,).

    Raises:
        ValueError: they are missing, of another number or type, or name no class.
    """
    labels = sent(update, "labels", (update.client.num_samples,), torch.int64)
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise ValueError(f"{update.sender} sent labels outside 0 to {num_classes - 1}")
    return labels


# The common parts of methods whose clients share the first layers of a model and keep the others.
#
# How many layers a client shares is its depth: FedPer and FedRep have one for all clients, in their
# "+" forms and in FedD2S it falls with the rounds in which a client took part.

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Dropping(Settings):
    """Which layers are dropped, and how soon."""

    layers: tuple[str, ...] = ("C3", "F1", "F2", "F3")
    """Layers that a client shares no longer after a while, the deepest last: the dropping set."""
    rate: Count = 3
    """Rounds Z0 that a client takes part in before it drops its next layer (FedD2S's paper: 3, 5
    and 7 for alpha 0.1, 0.5 and 1)."""

    def check(self, layers: Layers, setting: str = "dropping.layers") -> None:
        """Raises `UserError` if they are not the model's deepest layers, each of them once."""
        for name in self.layers:
            layers.check_name(name, setting)
        if len(set(self.layers)) < len(self.layers):
            raise UserError(f"{setting} names a layer twice: {', '.join(self.layers)}")
        deepest = layers.names[len(layers.names) - len(self.layers) :]
        if set(self.layers) != set(deepest) or len(self.layers) == len(layers.names):
            raise UserError(
                f"{setting} must be the last of {', '.join(layers.names)}, but not all of them: "
                f"got {', '.join(self.layers)}; the last {len(deepest)} are {', '.join(deepest)}"
            )

    def depth(self, layers: Layers, participations: int) -> int:
        """Eq. 6: beta(r) = L - floor((Z(r) - 1) / Z0), but no layer beyond the dropping set; L for
        a client that has not taken part yet."""
        dropped = max(0, participations - 1) // self.rate
        return len(layers.names) - min(len(self.layers), dropped)


def layers_of(config: PersonalConfig, run_spec: RunSpec) -> Layers:
    """The layers of the clients' model.

    Raises:
        UserError: its layers do not follow one another.
    """
    return Layers(starting_classifier(config.classifier, run_spec))


@torch.no_grad()
def output_shapes(model: nn.Module, layers: Layers, inputs: Inputs) -> Shapes:
    """The shape of one sample after each of the layers, without the batch."""
    x = inputs.example(1).to(next(model.parameters()).device)
    shapes = []
    for number in range(1, len(layers.names) + 1):
        x = layers.forward(model.eval(), x, number, number)
        shapes.append(tuple(x.shape[1:]))
    return shapes


def average_layers(model: nn.Module, updates: Sequence[Update]) -> None:
    """Loads into the model, layer by layer, the average over the clients that share the layer and
    so sent it, weighted by their samples; a layer that nobody shares does not change."""
    sent = (
        {name.removeprefix("classifier."): tensor for name, tensor in update.tensors.items()}
        for update in updates
    )
    weights = [update.client.num_samples for update in updates]
    average, state = average_states(sent, weights, partial=True), model.state_dict()
    load_whole(model, {**state, **{n: t.to(state[n].device) for n, t in average.items()}})
