"""A server of one rank in this process, and a fit for it that takes no time."""

from torch import nn

from fl.events import Events
from fl.federation import Batch
from fl.fusion.checkpoints import Checkpoints
from fl.fusion.distillation import FusionLoss
from fl.fusion.fit import FitConfig
from fl.fusion.server import SingleServer
from fl.training.classifier import starting_classifier
from tests.fl.toy import CPU, PROBLEM, VGG, Told, into, shard

TEST = shard(5, 5, 5, seed=1)
CONFIG = FitConfig(epochs=3, lr=5e-3, batch_size=8)
CE = FusionLoss(ce_weight=1, kd_weight=0)


def server(heard: list[Told] | None = None, checkpoints: Checkpoints | None = None) -> SingleServer:
    events = Events(*([into(heard)] if heard is not None else []))
    return SingleServer(PROBLEM, TEST, events, CPU, checkpoints)


def data() -> Batch:
    train = shard(10, 10, 10)
    return {"images": train.images, "labels": train.labels}


def model() -> nn.Module:
    return starting_classifier(VGG, PROBLEM)
