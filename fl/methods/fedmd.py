"""FedMD (Li and Wang, 2019), as FedD2S's paper compares with it: soft labels of public images.

In each round some clients send their own model's logits of public images, are taught by the mean of
what all of them sent, and train on their own images again. Who takes part for the first time trains
on these before. Nothing else is shared, and the server has no model.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fl.bounds import Count
from fl.clients import trained
from fl.data.datasets import AuxiliaryConfig
from fl.data.shard import Shard
from fl.federation import Batch, RunSpec, TaskInput, TaskOutput, Training, Update
from fl.methods.method import Choice
from fl.methods.personal import AnyModelsConfig, Personal, personal_method
from fl.receiving import sent
from fl.training.classifier import ClassifierConfig, classifier_recipe, plain
from fl.training.losses import divergences, logits_of
from fl.training.personal import PersonalTraining, own_model, personal_model
from fl.training.recipe import Recipe, epochs_of
from fl.training.task import task_of


@dataclass(frozen=True, kw_only=True)
class LocalFedMD(PersonalTraining):
    """Local training of a FedMD client: on public images' soft labels, then on its own labels."""

    epochs: Count = 2
    """Local epochs of a round (FedD2S's paper: 2)."""
    taught_epochs: Count = 2
    """Epochs on the public images and their soft labels (FedD2S's paper: 2)."""
    own_epochs: Count = 25
    """Epochs on its own images before a client first sends logits (the authors' code: 25)."""

    @property
    def first_round(self) -> ClassifierConfig:
        """What a client that takes part for the first time trains by: its own images, for longer.

        Who sends before it has learned teaches the others to answer all images alike.
        """
        return plain(self, epochs=self.own_epochs)


@dataclass(frozen=True, kw_only=True)
class FedMDConfig(AnyModelsConfig):
    """FedMD's settings: those of its clients, and the public images."""

    classifier: LocalFedMD = LocalFedMD()
    auxiliary: AuxiliaryConfig = AuxiliaryConfig(max_images=1000)


def run(frame: Personal, config: FedMDConfig, *, auxiliary: Tensor) -> None:
    """Rounds of sending, averaging, teaching and local training.

    The public images are known to all: sending them is not counted.
    """
    clients = frame.clients
    public, shape = {"public": auxiliary}, (len(auxiliary), clients.run_spec.num_classes)

    def check_logits(update: Update, run_spec: RunSpec) -> None:
        sent(update, "logits", shape)

    for chosen in frame.play():
        newcomers: dict[Training, list[int]] = {}
        for k in chosen:
            if frame.taken(k) == 1:
                newcomers.setdefault(clients.members[k].training.first_round, []).append(k)
        for training, own in newcomers.items():
            clients.train(training, only=own, remember=True, goes_to="client")
        updates = clients.map(send_public_logits, only=chosen, known=public, check=check_logits)
        with frame.server.events.phase("fusion"):
            logits = (update.tensors["logits"].double() for update in updates)
            consensus = (sum(logits, torch.zeros(shape)) / len(updates)).float()
        able = [update.client.id for update in updates]
        clients.map(
            train_on_public,
            only=able,
            broadcast={"consensus": consensus},
            known=public,
            remember=True,
            goes_to="client",
            check=trained,
        )
        clients.train(only=able, remember=True, goes_to="client")


def send_public_logits(inputs: TaskInput) -> TaskOutput:
    """The logits of the client's own model on the public images, (A, classes)."""
    config, public = inputs.record(LocalFedMD), inputs.broadcast["public"]
    return TaskOutput(tensors={"logits": logits_of(own_model(inputs), public, config.batch_size)})


@task_of
def train_on_public(inputs: TaskInput) -> Recipe:
    """Trains the client's own model on the consensus: KL(consensus || own) of each public image."""
    config = inputs.record(LocalFedMD)
    images = inputs.broadcast["public"]
    unlabelled = torch.zeros(len(images), dtype=torch.int64)
    public = replace(inputs, shard=Shard(images, unlabelled, inputs.shard.num_classes))

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        return divergences(batch["consensus"], model(batch["images"]))

    training = plain(config, epochs=config.taught_epochs)
    columns = {"consensus": inputs.broadcast["consensus"]}
    model = personal_model(inputs, config)
    recipe = classifier_recipe(public, training, model, losses=losses)
    epochs = epochs_of(public, training, model, columns=columns, order="public/order")
    return replace(recipe, epochs=epochs)


METHOD = personal_method(
    "fedmd",
    FedMDConfig,
    run,
    local={"classifier.taught_epochs": Choice((1, 2, 4))},
    auxiliary=lambda settings: settings.auxiliary,
)
