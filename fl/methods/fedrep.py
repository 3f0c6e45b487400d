"""FedRep (Collins et al., ICML 2021): FedPer whose clients train first the head, then the layers.

While the head is trained the shared layers are frozen, and the reverse.

FedRep+ (FedD2S, Section IV-A): its rounds are FedPer+'s. As long as a client shares its whole
model, and so has no head, all its epochs train that.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from fl.bounds import Count
from fl.errors import UserError
from fl.federation import TaskInput
from fl.methods.fedper import (
    DROPPING,
    FedPerConfig,
    FedPerPlusConfig,
    assign,
    assign_dropping,
    run,
    run_dropping,
)
from fl.methods.method import Method
from fl.methods.personal import LOCAL
from fl.spaces import Spaces
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain
from fl.training.epochs import epochs_of
from fl.training.personal import PersonalTraining, personal_model
from fl.training.recipe import Recipe


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
    Method(
        name="fedrep",
        config=FedRepConfig,
        assign=assign,
        run=partial(run, known=True),
        one_shot=False,
        scores_clients=lambda settings: True,
        spaces=Spaces(local=LOCAL),
    ),
    Method(
        name="fedrep+",
        config=FedRepPlusConfig,
        assign=assign_dropping,
        run=run_dropping,
        one_shot=False,
        scores_clients=lambda settings: True,
        spaces=Spaces(local={**LOCAL, **DROPPING}),
    ),
]
