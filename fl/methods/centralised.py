"""Central training: every client sends its images to the server, which trains on all of them.

No federated learning at all, but the line that the others are measured against.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fl.bounds import Settings
from fl.clients import Clients
from fl.federation import Batch, RunSpec, TaskInput, TaskOutput, Update
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.methods.method import Method
from fl.methods.prototypes import assign_all
from fl.methods.uploads import untrained_classifier
from fl.server import Outcome
from fl.spaces import LogUniform, Spaces
from fl.training.classifier import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class CentralisedConfig(Settings):
    """The classifier and its training at the server."""

    classifier: ClassifierConfig = ClassifierConfig()
    """Only the architecture is used: clients do not train."""
    fit: FitConfig = FitConfig(epochs=20, lr=0.01, optimizer="sgd", momentum=0.0, batch_size=64)


def run(clients: Clients, server: Server, config: CentralisedConfig) -> Outcome:
    """One upload of all samples, and a fit."""
    updates = clients.map(send_samples, check=_checked)
    model = untrained_classifier(config.classifier, server)
    start = server.evaluate(model)
    with server.events.phase("fusion"):
        loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)
        result = server.fit(
            model, samples(updates, server), loss=loss, config=config.fit, stage="fit"
        )
    return Outcome(model=model, start=start, epochs=result.epochs)


def send_samples(inputs: TaskInput) -> TaskOutput:
    """All images of the client, uint8 (n, C, H, W), and their labels, uint8 (n,)."""
    images = (inputs.shard.images * 255).round().to(torch.uint8)
    return TaskOutput(tensors={"images": images, "labels": inputs.shard.labels.to(torch.uint8)})


def samples(updates: list[Update], server: Server) -> Batch:
    """All clients' samples, images in [0, 1] and labels, checked.

    Raises:
        ValueError: an upload is not what a client's samples look like.
    """
    parts = [_checked(update, server.run_spec) for update in updates]
    return {
        "images": torch.cat([images for images, _ in parts]).float() / 255,
        "labels": torch.cat([labels for _, labels in parts]).long(),
    }


def _checked(update: Update, run_spec: RunSpec) -> tuple[Tensor, Tensor]:
    size = update.client.num_samples
    images = update.tensors.get("images", torch.empty(0))
    labels = update.tensors.get("labels", torch.empty(0))
    shapes = (images.shape, labels.shape) == ((size, *run_spec.image_shape), (size,))
    if not shapes or {images.dtype, labels.dtype} != {torch.uint8}:
        raise ValueError(f"client {update.client.id} did not send an image and label per sample")
    if int(labels.max()) >= run_spec.num_classes:
        raise ValueError(f"client {update.client.id} sent labels of no class: {int(labels.max())}")
    return images, labels


METHOD = Method(
    name="centralised",
    config=CentralisedConfig,
    assign=assign_all,
    run=run,
    spaces=Spaces(server={"fit.lr": LogUniform(1e-3, 1e-1)}),
)
