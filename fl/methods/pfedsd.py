"""pFedSD (Jin et al., TPDS 2022): FedAvg whose clients are taught by their own last model.

A client starts from the model that the server sent and trains on its labels and on the soft labels
of its own model of the round in which it last took part. That first time there is none, so the
first round is FedAvg's. Each client is scored by its own last model.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.bounds import NotNegative, Positive
from fl.clients import Clients
from fl.exchange import load_prefixed
from fl.federation import Batch, Task, TaskInput
from fl.methods.averaging import Averaging
from fl.methods.method import Method
from fl.methods.personal import LOCAL, Participations, PersonalConfig, assign
from fl.rounds import Rounds
from fl.server import Outcome, Server
from fl.spaces import LogUniform, Spaces
from fl.training.classifier import classifier_recipe, received_classifier, starting_classifier
from fl.training.divergence import divergences, logits_of
from fl.training.personal import PersonalTraining, own_model
from fl.training.recipe import Recipe
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalPFedSD(PersonalTraining):
    """Local training of a pFedSD client: a classifier's, taught by its last model."""

    weight: NotNegative = 1.0
    """Weight lambda of the client's own teacher; the authors' code has 1."""
    temperature: Positive = 1.0
    """Temperature tau of the soft labels; the authors' code has 1."""

    @property
    def task(self) -> Task:
        """The task that such a client runs from the second round on."""
        return train_by_last_model


@dataclass(frozen=True, kw_only=True)
class PFedSDConfig(PersonalConfig):
    """pFedSD's settings: those of its clients."""

    classifier: LocalPFedSD = LocalPFedSD()


def run(clients: Clients, server: Server, config: PFedSDConfig, *, rounds: Rounds) -> Outcome:
    """Rounds of local training and a plain mean, over clients that remember their last model."""
    frame, taken = Averaging(clients, server, config, rounds), Participations(clients)
    scored = partial(clients.score, own_model)
    for _ in frame.play(taken.memory, evaluate=scored, remember=True):
        taken.count(frame.chosen)
    (model,) = frame.model.values()
    return rounds.outcome(model, figures=taken.fedavg_bytes(config.classifier, server))


@task_of
def train_by_last_model(inputs: TaskInput) -> Recipe:
    """Minimises CE + lambda tau^2 KL(soft labels of the last model || the client's own)."""
    config = inputs.client.training
    assert isinstance(config, LocalPFedSD)
    model = received_classifier(inputs, config)
    if not config.weight:
        return classifier_recipe(inputs, config, model)
    size = len(inputs.shard)
    soft, taught = torch.zeros(size, inputs.run_spec.num_classes), torch.zeros(size)
    if inputs.remembered:
        last = starting_classifier(config, inputs.run_spec)
        load_prefixed(last, inputs.remembered, "classifier", sender="the client's memory")
        soft = logits_of(last.to(inputs.device), inputs.shard.images, config.batch_size)
        taught += 1

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["images"])
        entropy = F.cross_entropy(logits, batch["labels"], reduction="none")
        distance = divergences(batch["soft"], logits, config.temperature)
        return entropy + config.weight * batch["taught"] * distance

    columns = {"soft": soft, "taught": taught}
    return classifier_recipe(inputs, config, model, losses=losses, columns=columns)


METHOD = Method(
    name="pfedsd",
    config=PFedSDConfig,
    assign=assign,
    run=run,
    one_shot=False,
    scores_clients=lambda settings: True,
    spaces=Spaces(local={**LOCAL, "classifier.weight": LogUniform(0.1, 10.0)}),
)
