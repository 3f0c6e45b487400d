"""The common parts of methods whose clients share the first layers of a model and keep the others.

How many layers a client shares is its depth: FedPer and FedRep have one for all clients, in their
"+" forms and in FedD2S it falls with the rounds in which a client took part.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fl.bounds import Count, Settings
from fl.clients import Clients
from fl.errors import UserError
from fl.exchange import Tensors, checked
from fl.federation import RunSpec, Update
from fl.fusion.average import average_states
from fl.methods.personal import PersonalConfig
from fl.models import ImageShape
from fl.models.layered import Layers
from fl.training.classifier import starting_classifier

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
                f"{setting} must be the deepest of {', '.join(layers.names)}, without the first: "
                f"got {', '.join(self.layers)}, allowed for so many: {', '.join(deepest)}"
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
def output_shapes(model: nn.Module, layers: Layers, image_shape: ImageShape) -> Shapes:
    """The shape of one sample after each of the layers, without the batch."""
    x = torch.zeros(1, *image_shape, device=next(model.parameters()).device)
    shapes = []
    for number in range(1, len(layers.names) + 1):
        x = layers.forward(model.eval(), x, number, number)
        shapes.append(tuple(x.shape[1:]))
    return shapes


def first_layers(model: nn.Module, layers: Layers, depth: int) -> Tensors:
    """The weights of the model's first layers, as they are sent: ``classifier.*``."""
    state = model.state_dict()
    return {f"classifier.{name}": state[name] for name in layers.state_names(1, depth)}


def first_layers_each(
    model: nn.Module, layers: Layers, depths: Mapping[int, int], clients: Iterable[int]
) -> dict[int, Tensors]:
    """What each of these clients is sent: as many of the first layers as it shares."""
    by_depth = {depth: first_layers(model, layers, depth) for depth in set(depths.values())}
    return {k: by_depth[depths[k]] for k in clients}


def average_layers(
    model: nn.Module, layers: Layers, updates: Sequence[Update], depths: Mapping[int, int]
) -> None:
    """Loads into the model, layer by layer, the average over the clients that share the layer,
    weighted by their samples; a layer that nobody shares does not change.

    Raises:
        ValueError: an upload is not what so many of the model's layers look like.
    """
    state = model.state_dict()

    def shared(update: Update) -> Tensors:
        names = layers.state_names(1, depths[update.client.id])
        expected = {name: state[name] for name in names}
        return checked(expected, update.tensors, "classifier", f"client {update.client.id}")

    weights = [update.client.num_samples for update in updates]
    average = average_states(map(shared, updates), weights, partial=True)
    model.load_state_dict({**state, **{n: t.to(state[n].device) for n, t in average.items()}})


def same_depth(clients: Clients, depth: int) -> dict[int, int]:
    """The same depth for every client, by id."""
    return {client.id: depth for client in clients.members}
