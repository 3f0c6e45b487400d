"""Ditto (Li et al., ICML 2021): FedAvg, and a model of each client's own that is held near it.

In each round a client trains the weights w that were sent, for the average, and its own model v_k
by f_k(v) + lambda/2 |v - w|^2 (Algorithm 1). Each client is scored by its own model.
"""

from dataclasses import dataclass, replace

from fl.bounds import NotNegative
from fl.clients import trained
from fl.federation import TaskInput
from fl.methods.method import LogUniform
from fl.methods.personal import Personal, PersonalConfig, personal_method
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain
from fl.training.personal import PersonalTraining, personal_model
from fl.training.recipe import Recipe
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalDitto(PersonalTraining):
    """Local training of a Ditto client; its own model trains for as many epochs."""

    attachment: NotNegative = 1.0
    """lambda, which holds a client's own model near the global one; 0: it trains alone."""

    def recipe(self, inputs: TaskInput) -> Recipe:
        """FedAvg's; the client's own model is trained by a task of its own."""
        return ClassifierConfig.recipe(self, inputs)


@dataclass(frozen=True, kw_only=True)
class DittoConfig(PersonalConfig):
    """Ditto's settings: those of its clients."""

    classifier: LocalDitto = LocalDitto()


def run(frame: Personal, config: DittoConfig) -> None:
    """Rounds of FedAvg's training and mean; after each the clients' own models are trained."""
    for mean in frame.average():
        (start,) = mean.start.values()
        frame.clients.map(
            train_own_model,
            only=mean.chosen,
            known={f"global.{name}": weight for name, weight in start.items()},
            remember=True,
            goes_to="client",
            check=trained,
        )


@task_of
def train_own_model(inputs: TaskInput) -> Recipe:
    """Trains the client's own model near the global one that it was sent."""
    config = inputs.record(LocalDitto)
    model = personal_model(replace(inputs, broadcast={}), config)
    recipe = classifier_recipe(inputs, plain(config, proximal=config.attachment), model)
    near = [
        inputs.broadcast[f"global.classifier.{name}"].to(inputs.device)
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    return replace(recipe, anchor=near)


METHOD = personal_method(
    "ditto",
    DittoConfig,
    run,
    local={"classifier.attachment": LogUniform(0.01, 10.0)},
    any_targets=True,
)
