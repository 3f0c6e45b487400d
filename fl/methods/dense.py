"""DENSE (Zhang et al., NeurIPS 2022): data-free ensemble distillation.

Every client trains a classifier. In each epoch the server trains a generator anew, until the
clients' ensemble takes its images for the classes they are meant to be; the images join a pool, and
the global model, of the large clients' architecture and untrained at first, learns the ensemble's
answers on the whole pool once.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.clients import Clients
from fl.errors import UserError
from fl.federation import Problem
from fl.fusion.inversion import (
    BatchNormDistance,
    InversionConfig,
    InversionLoss,
    boundary_support,
    crop_and_flip,
    invert,
)
from fl.fusion.pool import DistillationConfig, Pool, distil_epoch
from fl.methods import prototypes
from fl.methods.method import Assignment, Method
from fl.methods.prototypes import LOCAL, PrototypesConfig, all_classifiers
from fl.methods.uploads import untrained_classifier
from fl.models.ensemble import Ensemble
from fl.models.image_generator import check_image_generator
from fl.seeding import torch_generator
from fl.server import Outcome, Server
from fl.spaces import Choice, LogUniform, Spaces, Uniform


@dataclass(frozen=True, kw_only=True)
class DenseConfig(PrototypesConfig):
    """DENSE's own settings, sized for a laptop; the released code's are in docs/methods.md."""

    ce: float = 1.0
    """Weight of the ensemble's cross-entropy on the images."""
    bn: float = 1.0
    """Weight of the distance to the clients' BatchNorm statistics, where they have any. 0 is what
    the released code does, whose hooks never fire."""
    adv: float = 1.0
    """Weight of the boundary-support term."""
    inversion: InversionConfig = InversionConfig()
    kd: DistillationConfig = DistillationConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.ce, self.bn, self.adv) < 0:
            raise UserError(f"ce, bn, adv must not be negative: {self.ce}, {self.bn}, {self.adv}")


SPACES = Spaces(
    server={
        "adv": Uniform(0.1, 2.0),
        "inversion.lr": LogUniform(1e-4, 1e-2),
        "kd.lr": LogUniform(1e-3, 1e-1),
        "kd.temperature": Choice((1.0, 4.0, 20.0)),
    },
    local=LOCAL,
    epochs="kd.epochs",
)


def assign(config: PrototypesConfig, num_clients: int, problem: Problem) -> list[Assignment]:
    """As FedAvg's; there must be a generator for these images."""
    check_image_generator(problem.image_shape)
    return prototypes.assign(config, num_clients, problem)


def run(clients: Clients, server: Server, config: DenseConfig) -> Outcome:
    """Algorithm 1; ``start`` is the untrained global model. The last epoch counts."""
    updates = clients.train()
    teacher = all_classifiers(updates, server)
    student = untrained_classifier(updates[0].client.training, server)
    start = server.evaluate(student)
    optimizer = config.kd.optimizer(student)
    pool, epochs = Pool(server.problem.seed), []
    with BatchNormDistance(teacher.members).watching() as statistics:
        for epoch in range(1, config.kd.epochs + 1):
            with server.events.phase("synthesis"):
                stream = torch_generator(server.problem.seed, f"augmentation/{epoch}")
                loss = generator_loss(teacher, student, statistics, config, stream)
                images, labels = invert(
                    loss, server.problem, config.inversion, epoch=epoch, device=server.device
                )
                with torch.no_grad():  # neither images nor teachers change: asked once
                    pool.add(images=images, labels=labels, wanted=teacher(images))
            with server.events.phase("fusion"):
                batches = pool.batches("fusion/order", epoch, config.kd.batch_size)
                lessons = ((batch["images"], batch["wanted"]) for batch in batches)
                found = distil_epoch(student, lessons, optimizer, config.kd, server, epoch)
                epochs.append(found)
    return Outcome(model=student, start=start, epochs=epochs, **pool.told())


def generator_loss(
    teacher: Ensemble,
    student: nn.Module,
    statistics: BatchNormDistance,
    config: DenseConfig,
    stream: torch.Generator,
) -> InversionLoss:
    """L_CE + L_BN + L_adv of views of images. The student is asked in eval mode, not trained."""
    student.eval().requires_grad_(False)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        views = crop_and_flip(images, stream)
        wanted = teacher(views)
        value = config.ce * F.cross_entropy(wanted, labels)
        if config.bn:
            value = value + config.bn * statistics.value.to(value.device)
        if config.adv:
            value = value + config.adv * boundary_support(student(views), wanted)
        return value

    return loss


METHOD = Method(
    name="dense", config=DenseConfig, assign=assign, run=run, one_rank=True, spaces=SPACES
)
