"""SCAFFOLD (Karimireddy et al., ICML 2020): FedAvg whose clients correct their drift.

Client k steps along its gradient plus c - c_k from the weights x that were sent, and the controls
follow (Algorithm 1, option II), with tau local steps and K clients in all::

    c_k+ = c_k - c + (x - w_k) / (tau lr)
    x = x + mean_k (w_k - x)
    c = c + sum_k (c_k+ - c_k) / K

A client sends its weights and the change of its control, and is sent x and c.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from fl.bounds import Within
from fl.client_map import Recipient
from fl.exchange import Tensors
from fl.federation import TaskInput
from fl.methods.averaging import Averaging, averaging_method
from fl.methods.prototypes import ParticipationConfig, PrototypesConfig
from fl.models.common import parameters_sent
from fl.models.registry import smallest_batch
from fl.training.classifier import ClassifierConfig, classifier_recipe, received_classifier
from fl.training.optimizers import Corrected
from fl.training.personal import beside
from fl.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class LocalScaffold(ClassifierConfig):
    """Local training of a SCAFFOLD client: plain SGD, corrected."""

    momentum: Annotated[float, Within(0, 0)] = 0.0
    """None: a control is the mean gradient of plain steps."""
    proximal: Annotated[float, Within(0, 0)] = 0.0
    """None, too."""

    def check_further(self) -> None:
        """A control is the mean gradient of a known number of plain steps."""
        self.refuse_uncounted("scaffold")

    def recipe(self, inputs: TaskInput) -> Recipe:
        """Trains along each gradient plus c - c_k; a control that was never sent is 0."""
        model = received_classifier(inputs, self)
        x = {name: p.clone() for name, p in parameters_sent(model).items()}
        c = beside("control", inputs.payload, x, "the server")
        own = beside("control", inputs.remembered, x, "the client's memory")
        tau = self.steps(len(inputs.shard), smallest_batch(model))

        def upload() -> Tensors:
            tensors = recipe.upload()
            for name, w in parameters_sent(model).items():
                change = (x[name] - w) / (tau * self.lr) - c[name]
                tensors |= {f"control.{name}": own[name] + change, f"change.{name}": change}
            return tensors

        apart = [c[n] - own[n] for n, p in model.named_parameters() if p.requires_grad]
        recipe, optimizer = classifier_recipe(inputs, self, model), Corrected(self.make_optimizer())
        return replace(recipe, optimizer=optimizer, anchor=apart, upload=upload)


@dataclass(frozen=True, kw_only=True)
class ScaffoldConfig(ParticipationConfig, PrototypesConfig):
    """SCAFFOLD's settings: those of its clients."""

    classifier: LocalScaffold = LocalScaffold()


def run(frame: Averaging, config: ScaffoldConfig) -> None:
    """Algorithm 1 with the server's step 1: the mean of the weights, and the controls."""
    controls = frame.zeros()
    start = partial(frame.sent, control=controls)
    also: dict[str, Recipient] = {"control": "client", "change": "server"}
    for updates in frame.play(controls, start=start, also=also):
        for parameter, _, own, there in frame.moves(updates):
            for update in own:
                change = update.tensors[f"change.{parameter.name}"].to(frame.server.device)
                controls[parameter.key] += change / there


METHOD = averaging_method("scaffold", ScaffoldConfig, run, any_targets=True)
