"""FedRep (Collins et al., ICML 2021): FedPer whose clients train first the head, then the layers.

While the head is trained the shared layers are frozen, and the reverse.
"""

from dataclasses import dataclass, replace
from typing import Self

from fl.bounds import Count
from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Task, TaskInput
from fl.methods.fedper import FedPerConfig, assign, share_layers
from fl.methods.method import Method
from fl.methods.personal import LOCAL
from fl.rounds import Rounds
from fl.server import Outcome, Server
from fl.spaces import Spaces
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain
from fl.training.epochs import epochs_of
from fl.training.personal import PersonalTraining, personal_model
from fl.training.recipe import Recipe
from fl.training.task import task_of


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

    @property
    def task(self) -> Task:
        """The task of such a client."""
        return train_head_then_layers

    def probe(self, steps: int, num_classes: int) -> tuple[Self, int]:
        """See :class:`fl.federation.Training`: an epoch of the head, one of the shared layers."""
        return replace(self, epochs=1, head_epochs=None), steps * self.batch_size

    def check_further(self) -> None:
        """At least one of the epochs is left for the shared layers."""
        if self.head_epochs is not None and self.head_epochs >= self.epochs:
            raise UserError(
                f"head_epochs must be below epochs ({self.epochs}), got {self.head_epochs}"
            )


@dataclass(frozen=True, kw_only=True)
class FedRepConfig(FedPerConfig):
    """FedRep's settings: FedPer's, and how many epochs the head has."""

    classifier: LocalFedRep = LocalFedRep()


def run(clients: Clients, server: Server, config: FedRepConfig, *, rounds: Rounds) -> Outcome:
    """FedPer's rounds; a FedRep client trains as one from the first round on."""
    return share_layers(clients, server, config, rounds=rounds, known=True)


@task_of
def train_head_then_layers(inputs: TaskInput) -> Recipe:
    """Trains the head on frozen shared layers, then these under the frozen head.

    What the server sent, or what the client knows without being sent it, are the shared layers. A
    model that is all head, or all shared, has all epochs.
    """
    config = inputs.client.training
    assert isinstance(config, LocalFedRep)
    model = personal_model(inputs, config)
    received = {**inputs.broadcast, **inputs.payload}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    shared = [p for name, p in named if f"classifier.{name}" in received]
    head = [p for name, p in named if f"classifier.{name}" not in received]
    if not (head and shared):
        return classifier_recipe(inputs, config, model)

    head_epochs, shared_epochs = config.stages

    def then() -> Recipe:
        left = plain(config, epochs=shared_epochs)
        epochs = epochs_of(inputs, left, model, order="local/order/shared")
        return replace(classifier_recipe(inputs, left, model), epochs=epochs, trained=shared)

    first = classifier_recipe(inputs, plain(config, epochs=head_epochs), model)
    return replace(first, trained=head, then=then)


METHOD = Method(
    name="fedrep",
    config=FedRepConfig,
    assign=assign,
    run=run,
    one_shot=False,
    scores_clients=lambda settings: True,
    spaces=Spaces(local=LOCAL),
)
