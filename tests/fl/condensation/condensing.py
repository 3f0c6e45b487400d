"""A client that condenses, small: it lacks a class, and has less than a batch of another."""

from dataclasses import replace

from torch import nn

from fl.condensation.task import LocalCondensation
from fl.data.shard import Shard
from fl.exchange import prefixed
from fl.federation import TaskInput
from fl.models.registry import build_classifier
from fl.seeding import seeded
from tests.fl.toy import PROBLEM, shard, task_input

CONFIG = LocalCondensation(
    width=0.03, images_per_class=3, steps=3, lr=5.0, batch_size=4, gamma=0.8, clip=0.5
)
HELD = (6, 0, 3)  # samples per class: one is missing, one has fewer than a batch


def global_model(config: LocalCondensation = CONFIG) -> nn.Module:
    with seeded(7, "test/global"):
        return build_classifier(config.model, PROBLEM.image_shape, 3, width=config.width)


def inputs(
    config: LocalCondensation = CONFIG, data: Shard | None = None, **changes: object
) -> TaskInput:
    given = task_input(config, shard(*HELD) if data is None else data)
    return replace(given, broadcast=prefixed("classifier", global_model(config)), **changes)
