"""Central training: every client sends its images to the server, which trains on all of them.

No federated learning at all, but the line that the others are measured against.
"""

from dataclasses import dataclass

import torch

from fl.bounds import Settings
from fl.clients import Clients
from fl.federation import Batch, RunSpec, Task, TaskInput, TaskOutput, Update
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import Server
from fl.methods.method import LogUniform, Method, Spaces
from fl.methods.prototypes import assign_all
from fl.methods.uploads import untrained_classifier
from fl.receiving import sent
from fl.server import Outcome
from fl.training.classifier import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class OnlySending(ClassifierConfig):
    """The classifier of the server, whose clients train nothing."""

    @property
    def task(self) -> Task:
        """The task that such a client runs."""
        return send_samples


@dataclass(frozen=True, kw_only=True)
class CentralisedConfig(Settings):
    """The classifier and its training at the server."""

    classifier: OnlySending = OnlySending()
    """Only the architecture is used: clients do not train."""
    fit: FitConfig = FitConfig(epochs=20, lr=0.01, optimizer="sgd", momentum=0.0, batch_size=64)


def run(clients: Clients, server: Server, config: CentralisedConfig) -> Outcome:
    """One upload of all samples, and a fit."""
    updates = clients.map(send_samples, check=check_samples)
    model = untrained_classifier(config.classifier, server)
    start = server.evaluate(model)
    with server.events.phase("fusion"):
        loss = FusionLoss(ce_weight=1.0, kd_weight=0.0)
        result = server.fit(
            model, samples(updates, server.run_spec), loss=loss, config=config.fit, stage="fit"
        )
    return Outcome(model=model, start=start, epochs=result.epochs)


def send_samples(inputs: TaskInput) -> TaskOutput:
    """All samples of the client, images with 256 levels as uint8 (n, C, H, W), and their labels."""
    samples = inputs.shard.images
    if inputs.run_spec.inputs.kind == "pixels":
        levels = (samples * 255).round().to(torch.uint8)
        samples = levels if torch.equal(levels.float() / 255, samples) else samples
    labels = inputs.shard.labels.to(_label_type(inputs.run_spec))
    return TaskOutput(tensors={"images": samples, "labels": labels})


def _label_type(run_spec: RunSpec) -> torch.dtype:
    return torch.uint8 if run_spec.num_classes <= 256 else torch.int64


def check_samples(update: Update, run_spec: RunSpec) -> None:
    """Raises `ValueError` unless it holds a sample and a label for each of the client's."""
    size, inputs = update.client.num_samples, run_spec.inputs
    pixels = inputs.kind == "pixels"
    as_levels = pixels and sent(update, "images").dtype == torch.uint8
    dtype = torch.uint8 if as_levels else inputs.example(0).dtype
    images = sent(update, "images", (size, *inputs.shape), dtype)
    labels = sent(update, "labels", (size,), _label_type(run_spec))
    if int(labels.min()) < 0 or int(labels.max()) >= run_spec.num_classes:
        raise ValueError(f"{update.sender} sent labels of no class: {int(labels.max())}")
    if not all(part.isfinite().all() for part in inputs.one_by_one(images)):  # sent as bytes
        raise ValueError(f"{update.sender} sent samples with NaN or infinite values")
    if pixels and not as_levels and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise ValueError(f"{update.sender} sent pixels outside 0 to 1")


def samples(updates: list[Update], run_spec: RunSpec) -> Batch:
    """All clients' samples as a model takes them, and their labels."""
    images = [update.tensors["images"] for update in updates]
    if run_spec.inputs.kind == "pixels":  # of some clients levels, perhaps not of others
        images = [own.float() / 255 if own.dtype == torch.uint8 else own for own in images]
    labels = torch.cat([update.tensors["labels"] for update in updates])
    return {"images": torch.cat(images), "labels": labels.long()}


METHOD = Method(
    name="centralised",
    config=CentralisedConfig,
    assign=assign_all,
    run=run,
    fixed_samples=True,
    spaces=Spaces(server={"fit.lr": LogUniform(1e-3, 1e-1)}),
)
