"""A client's tasks in a round: upload the global model's mean logits, and condense its data."""

from collections.abc import Sequence

import torch

from fl.condensation.config import LocalCondensation
from fl.condensation.images import ByClass
from fl.condensation.learning import Condensing, learn
from fl.federation import TaskInput, TaskOutput
from fl.training.classifier import received_classifier
from fl.training.task import task_for_many

ROWS = 1024
"""Images in one forward pass without gradients."""


@torch.no_grad()
def tell_mean_logits(inputs: TaskInput) -> TaskOutput:
    """Uploads the global model's mean logits, in eval mode, on each of the client's classes.

    ``mean_logits`` V_k (Eq. 5) and ``soft_labels`` R_k (Eq. 11), (classes, classes) each. Rows of
    classes that the client does not condense are zeros.
    """
    config = _config(inputs)
    model = received_classifier(inputs, config).eval()
    data = ByClass(inputs.shard, config.min_samples, inputs.device)
    classes = inputs.run_spec.num_classes
    logits = torch.zeros(classes, classes)
    for c, images in zip(data.classes.tolist(), data, strict=True):
        logits[c] = torch.cat([model(rows) for rows in images.split(ROWS)]).mean(0).cpu()
    soft = torch.zeros(classes, classes)
    own = data.classes.cpu()
    soft[own] = (logits[own] / config.temperature).softmax(1)
    return TaskOutput(tensors={"mean_logits": logits, "soft_labels": soft})


@task_for_many
def condense(clients: Sequence[TaskInput]) -> list[TaskOutput]:
    """Learns condensed images S_k of each client's classes and uploads them.

    ``images`` (m * IPC, C, H, W) are ordered class after class; ``classes`` (m,) lists the classes.
    """
    config = _config(clients[0])
    cohort = [Condensing(inputs, config) for inputs in clients]
    learn([client for client in cohort if len(client.images)], config)
    return [_upload(client, config) for client in cohort]


def _upload(client: Condensing, config: LocalCondensation) -> TaskOutput:
    images = client.images
    if config.pixels == "uint8":
        images = images.mul(255).round().clamp(0, 255).to(torch.uint8)
    tensors = {"images": images, "classes": client.classes}
    return TaskOutput(tensors=tensors, stats=client.stats, losses=client.losses.curve)


def _config(inputs: TaskInput) -> LocalCondensation:
    config = inputs.client.training
    if not isinstance(config, LocalCondensation):
        raise TypeError(f"client {inputs.client.id} condenses nothing")
    return config
