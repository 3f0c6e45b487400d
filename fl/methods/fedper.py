"""FedPer (Arivazhagan et al., 2019): the first layers are averaged, the others stay with a client.

In each round some clients put the layers that the server sent in front of their own head, train
both together, and upload the layers. The head is theirs: no byte of it is sent.

FedRep (Collins et al., ICML 2021): clients train first the head, then the shared layers, each while
the other is frozen.

FedPer+ and FedRep+ (FedD2S, Section IV-A): a client starts by sharing its whole model, and drops
its deepest shared layer each time that it has taken part in so many rounds: FedD2S's layer
dropping, without its distillation. A layer is averaged over those that still share it. As long as a
FedRep+ client has no head, all its epochs train the whole model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from fl.bounds import Count, Number
from fl.client_map import Recipient
from fl.errors import UserError
from fl.exchange import Tensors
from fl.federation import Client, RunSpec, TaskInput
from fl.methods.method import Assignment, Choice, Distribution
from fl.methods.personal import (
    Dropping,
    Personal,
    PersonalConfig,
    average_layers,
    layers_of,
    personal_method,
)
from fl.methods.prototypes import assign_all
from fl.methods.uploads import combine, untrained_classifier
from fl.models.layered import Layers
from fl.server import Evaluation
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain
from fl.training.personal import PersonalTraining, own_model, personal_model
from fl.training.recipe import Recipe, epochs_of

DROPPING: dict[str, Distribution] = {"dropping.rate": Choice((1, 2, 3, 5, 7))}
"""A sweep's space of layer dropping."""


@dataclass(frozen=True, kw_only=True)
class FedPerConfig(PersonalConfig):
    """How many layers are shared, beside the settings of the clients."""

    shared_layers: Number | None = None
    """Layers that are averaged, counted from the first; 0: none. Default: those before the
    flattening, as FedD2S's paper has it."""

    def check_layers(self, layers: Layers) -> None:
        """Raises `UserError` if the model has fewer layers, or by default none that is shared."""
        if self.shared_layers is not None:
            layers.check(self.shared_layers, "shared_layers")
        elif not layers.flattening:
            raise UserError(
                f"shared_layers: by default the layers before the flattening are shared, but "
                f"{self.classifier.model} has none: set how many to share"
            )

    def depth(self, layers: Layers, participations: int = 1) -> int:
        """The number of shared layers, in all rounds."""
        return layers.flattening if self.shared_layers is None else self.shared_layers


@dataclass(frozen=True, kw_only=True)
class FedPerPlusConfig(PersonalConfig):
    """Which layers are dropped and when, beside the settings of the clients."""

    dropping: Dropping = Dropping()

    def check_layers(self, layers: Layers) -> None:
        """Raises `UserError` if the model has no such layers to drop."""
        self.dropping.check(layers)

    def depth(self, layers: Layers, participations: int) -> int:
        """The number of layers that a client shares which has taken part so often."""
        return self.dropping.depth(layers, participations)


Config = FedPerConfig | FedPerPlusConfig


def assign(config: Config, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """Every client trains the same classifier.

    Raises:
        UserError: the classifier cannot take these images, its layers do not follow one another, or
            it has no such layers.
    """
    config.check_layers(layers_of(config, run_spec))
    return assign_all(config, num_clients, run_spec)


def run(frame: Personal, config: Config, *, known: bool = False) -> None:
    """w_l = sum_k n_k / n w_k,l of each layer l, over the clients k that share it; each client is
    scored with its own head on the newest layers.

    ``known``: whether a client's training needs to know which layers are shared, in the first round
    too, when none is sent; then all share equally many.
    """
    clients, server = frame.clients, frame.server
    model = untrained_classifier(config.classifier, server)
    layers = layers_of(config, clients.run_spec)
    everyone = [client.id for client in clients.members]

    def newest(ids: Iterable[int]) -> dict[int, Tensors]:
        """As many of the first layers, ``classifier.*``, as each of these clients shares."""
        depths, state = {k: config.depth(layers, frame.taken(k)) for k in ids}, model.state_dict()
        first = {depth: layers.state_names(1, depth) for depth in depths.values()}
        of = {depth: {f"classifier.{n}": state[n] for n in names} for depth, names in first.items()}
        return {k: of[depth] for k, depth in depths.items()}

    def goes_to(client: Client, name: str) -> Recipient:
        shared = layers.state_names(1, config.depth(layers, frame.taken(client.id)))
        return "server" if name.removeprefix("classifier.") in shared else "client"

    def scored() -> Evaluation:
        return clients.score(own_model, payloads=newest(everyone))

    whole = config.depth(layers, frame.rounds.count) == len(layers)
    for chosen in frame.play(model, evaluate=scored, whole=whole):
        shared = newest(chosen)
        updates = clients.train(
            only=chosen,
            payloads=clients.to_send(shared),
            known=shared[chosen[0]] if known else None,
            remember=True,
            goes_to=goes_to,
        )
        with server.events.phase("fusion"):
            combine(model, updates, clients, server, partial(average_layers, model))


@dataclass(frozen=True, kw_only=True)
class LocalFedRep(PersonalTraining):
    """Local training of a FedRep client: head first, then the shared layers."""

    head_epochs: Count | None = None
    """How many of the epochs train the head; the rest, at least one, train the shared layers.
    Default: all but one, at least one. The authors have 10 and 1 on CIFAR-10."""

    @property
    def stages(self) -> tuple[int, int]:
        """Epochs of the head, and then of the shared layers."""
        head = self.head_epochs or max(1, self.epochs - 1)
        return head, max(1, self.epochs - head)

    @property
    def first_round(self) -> ClassifierConfig:
        """Its own record: it trains head and shared layers in turn from the first round on."""
        return self

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """See :class:`fl.federation.Training`: an epoch of the head, one of the shared layers."""
        return replace(self, epochs=1, head_epochs=None), steps * self.batch_size

    def check_further(self) -> None:
        """At least one of the epochs is left for the shared layers."""
        super().check_further()
        if self.head_epochs is not None and self.head_epochs >= self.epochs:
            raise UserError(
                f"head_epochs must be below epochs ({self.epochs}), got {self.head_epochs}"
            )

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains the head on frozen shared layers, then these under the frozen head.

        What the server sent, or what the client knows without being sent it, are the shared layers.
        A model that is all head, or all shared, has all epochs.
        """
        model = personal_model(inputs, self)
        received = {**inputs.broadcast, **inputs.payload}
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        shared = [p for name, p in named if f"classifier.{name}" in received]
        head = [p for name, p in named if f"classifier.{name}" not in received]
        if not (head and shared):
            return classifier_recipe(inputs, self, model)
        head_epochs, shared_epochs = self.stages

        def then() -> Recipe:
            left = plain(self, epochs=shared_epochs)
            epochs = epochs_of(inputs, left, model, order="local/order/shared")
            return replace(classifier_recipe(inputs, left, model), epochs=epochs, trained=shared)

        first = classifier_recipe(inputs, plain(self, epochs=head_epochs), model)
        return replace(first, trained=head, then=then)


@dataclass(frozen=True, kw_only=True)
class FedRepConfig(FedPerConfig):
    """FedRep's settings: FedPer's, and how many epochs the head has."""

    classifier: LocalFedRep = LocalFedRep()


@dataclass(frozen=True, kw_only=True)
class LocalFedRepPlus(LocalFedRep):
    """Local training of a FedRep+ client: FedRep's, but for the first round."""

    @property
    def first_round(self) -> ClassifierConfig:
        """FedAvg's record: the clients share all layers."""
        return plain(self)


@dataclass(frozen=True, kw_only=True)
class FedRepPlusConfig(FedPerPlusConfig):
    """FedRep+'s settings: FedPer+'s, and how many epochs the head has."""

    classifier: LocalFedRepPlus = LocalFedRepPlus()


METHODS = [
    personal_method("fedper", FedPerConfig, run, assign=assign),
    personal_method("fedper+", FedPerPlusConfig, run, assign=assign, local=DROPPING),
    personal_method("fedrep", FedRepConfig, partial(run, known=True), assign=assign),
    personal_method("fedrep+", FedRepPlusConfig, run, assign=assign, local=DROPPING),
]
