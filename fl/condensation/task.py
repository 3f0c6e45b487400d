"""What a client does in a round: tell how the global model sees its classes, and condense them."""

import torch
from torch import Tensor, nn

from fl.condensation.augment import draw_augmentation
from fl.condensation.config import LocalCondensation
from fl.condensation.images import ByClass
from fl.condensation.losses import (
    distribution_matching,
    random_directions,
    sliced_wasserstein,
)
from fl.condensation.network import Networks, features_and_logits
from fl.federation import TaskInput, TaskOutput
from fl.seeding import in_round, torch_seeded
from fl.training.local import received_classifier
from fl.training.optimizers import SGD

ROWS = 1024
"""Images in one forward pass without gradients."""


@torch.no_grad()
def tell_mean_logits(inputs: TaskInput) -> TaskOutput:
    """Uploads how the global model, as it predicts, answers the client's classes.

    ``mean_logits`` V_k (Eq. 5) and ``soft_labels`` R_k (Eq. 11), (classes, classes) each. Rows of
    classes that the client does not condense are NaN.
    """
    config = _config(inputs)
    model = received_classifier(inputs, config).eval()
    data = ByClass(inputs.shard, config.min_samples, inputs.device)
    classes = inputs.problem.num_classes
    logits = torch.full((classes, classes), torch.nan)
    for c, images in zip(data.classes.tolist(), data, strict=True):
        logits[c] = torch.cat([model(rows) for rows in images.split(ROWS)]).mean(0).cpu()
    soft = (logits / config.temperature).softmax(1)
    return TaskOutput(tensors={"mean_logits": logits, "soft_labels": soft})


def condense(inputs: TaskInput) -> TaskOutput:
    """Learns condensed images S_k of the client's classes and uploads them.

    ``images`` (m * IPC, C, H, W) stand class after class; ``classes`` (m,) says which these are.
    """
    config = _config(inputs)
    data = ByClass(inputs.shard, config.min_samples, inputs.device)
    images = data.start(
        config.images_per_class,
        config.averaged,
        inputs.stream("condense/start"),
        noise=config.init == "noise",
    )
    network = in_round("condense/network", inputs.round)
    with torch_seeded(inputs.problem.seed, network, inputs.client.id):
        stats = _learn(images, data, inputs, config) if len(images) else {}
    if config.pixels == "uint8":
        images = images.mul(255).round().clamp(0, 255).to(torch.uint8)
    return TaskOutput(tensors={"images": images, "classes": data.classes}, stats=stats)


def _learn(
    images: Tensor, data: ByClass, inputs: TaskInput, config: LocalCondensation
) -> dict[str, float]:
    """Minimises Eq. 10 over the images, in place; all classes are learned in one batch.

    Without ``mean_logits`` from the server there is no collaborative term: Eq. 4.
    """
    networks = Networks(received_classifier(inputs, config), inputs, config)
    order, chance = inputs.stream("condense/batches"), inputs.stream("condense/augmentation")
    directions = inputs.stream("condense/directions")
    goals = inputs.broadcast.get("mean_logits")
    loss = torch.zeros(())
    images.requires_grad_()
    optimizer = SGD(config.lr, config.momentum).together([[images]])
    for _ in range(config.steps):
        network, augment = networks.next(), draw_augmentation(config.augment, chance)
        with torch.no_grad():
            batch = augment(data.batch(config.batch_size, order))
            real, _ = features_and_logits(network, batch)
        condensed, logits = features_and_logits(network, augment(images))
        m = len(data.classes)
        loss = distribution_matching(_means(real, m), _means(condensed, m))
        if goals is not None:
            u, v = _means(logits, m), goals[data.classes].to(logits.device)
            slices = random_directions(config.projections, u.shape[1], directions)
            loss = loss + config.collaboration * sliced_wasserstein(u, v, slices.to(u.device))
        images.grad = None
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_([images], config.clip)
        optimizer.step([0])
    images.requires_grad_(False)
    return {"train_loss": loss.item()}


def _means(values: Tensor, classes: int) -> Tensor:
    """Class-wise means (classes, d) of values (N, d) that stand class after class, evenly many."""
    return values.view(classes, -1, values.shape[1]).mean(1)


def _config(inputs: TaskInput) -> LocalCondensation:
    config = inputs.client.training
    if not isinstance(config, LocalCondensation):
        raise TypeError(f"client {inputs.client.id} condenses nothing")
    return config
