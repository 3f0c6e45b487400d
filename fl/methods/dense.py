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

from fl.bounds import NotNegative
from fl.clients import Clients
from fl.federation import Batch, RunSpec
from fl.fusion.inversion import (
    BatchNormDistance,
    DistillationConfig,
    DistillationLoss,
    InversionConfig,
    InversionLoss,
    Pool,
    boundary_support,
    check_image_generator,
    crop_and_flip,
    invert,
)
from fl.fusion.server import Server
from fl.methods import prototypes
from fl.methods.method import Assignment, Choice, LogUniform, Method, Spaces, Uniform
from fl.methods.prototypes import LOCAL, PrototypesConfig, all_classifiers
from fl.methods.uploads import untrained_classifier
from fl.models.common import digest_of
from fl.models.ensemble import Ensemble
from fl.seeding import torch_generator
from fl.server import Outcome


@dataclass(frozen=True, kw_only=True)
class PooledConfig(PrototypesConfig):
    """Settings of DENSE and Co-Boosting, sized for a laptop; released ones:
    docs/methods/fedmho.md."""

    ce: NotNegative = 1.0
    """Weight of the ensemble's cross-entropy on the images."""
    adv: NotNegative = 1.0
    """Weight of the term that sets the generator against the global model."""
    inversion: InversionConfig = InversionConfig()
    kd: DistillationConfig = DistillationConfig()


@dataclass(frozen=True, kw_only=True)
class DenseConfig(PooledConfig):
    """DENSE's own settings; ``adv`` weights its boundary support."""

    bn: NotNegative = 1.0
    """Weight of the distance to the clients' BatchNorm statistics, where they have any. 0 is as
    in the released code, whose hooks never run."""
    views: bool = False
    """Whether the models see each image shifted and mirrored at random while it is made, as in the
    released code. Then it has to be of its class mirrored too, which few digits are."""


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


def assign(config: PrototypesConfig, num_clients: int, run_spec: RunSpec) -> list[Assignment]:
    """FedAvg's assignments; there must be a generator for these images."""
    check_image_generator(run_spec.image_shape)
    return prototypes.assign(config, num_clients, run_spec)


class Lessons(Pool):
    """Each epoch's data: the pool grows by new images, and the student learns all of it."""

    def __init__(
        self, teacher: Ensemble, student: nn.Module, server: Server, config: PooledConfig
    ) -> None:
        super().__init__(server.run_spec.seed)
        self._teacher, self._student = teacher, student
        self._server, self._config = server, config

    @property
    def memory(self) -> dict[str, Tensor]:
        """The pool's columns."""
        return self.columns

    @memory.setter
    def memory(self, columns: dict[str, Tensor]) -> None:
        self.columns = columns

    def digest(self) -> str:
        """A hash of teachers and settings."""
        return digest_of(self._teacher.members.state_dict(), f"{self._config}")

    def epoch(self, number: int) -> Batch:
        """Makes an epoch's images, and returns what the student learns in it."""
        raise NotImplementedError


class DenseLessons(Lessons):
    """DENSE's: images that the ensemble takes for their classes."""

    _config: DenseConfig

    def epoch(self, number: int) -> Batch:
        """Makes images (the generator's training) and computes the teachers' logits for them, once,
        since neither changes later."""
        with (
            self._server.events.phase("synthesis"),
            BatchNormDistance(self._teacher.members).watching() as statistics,
        ):
            stream = torch_generator(self._server.run_spec.seed, f"augmentation/{number}")
            loss = generator_loss(self._teacher, self._student, statistics, self._config, stream)
            images, labels = invert(
                loss,
                self._server.run_spec,
                self._config.inversion,
                epoch=number,
                device=self._server.device,
            )
            with torch.no_grad():
                self.add(images=images, labels=labels, teacher_logits=self._teacher(images))
        self._student.requires_grad_(True)
        return {name: self.columns[name] for name in ("images", "teacher_logits")}


def run(
    clients: Clients, server: Server, config: PooledConfig, kind: type[Lessons] = DenseLessons
) -> Outcome:
    """Algorithm 1, with DENSE's epochs or another ``kind``; ``start`` is the untrained global
    model. The last epoch counts."""
    updates = clients.train()
    teacher = all_classifiers(updates, server)
    student = untrained_classifier(clients.members[0].training, server)  # whoever is dropped
    start = server.evaluate(student)
    lessons = kind(teacher, student, server, config)
    with server.events.phase("fusion"):
        result = server.fit(
            student,
            lessons,
            loss=DistillationLoss(config.kd.temperature),
            config=config.kd.fit_config(),
            stage="fusion",
        )
    ceiling = server.evaluate(teacher).accuracy  # of what the student learns
    described = lessons.described(teacher_accuracy=ceiling)
    return Outcome(model=student, start=start, epochs=result.epochs, **described)


def generator_loss(
    teacher: Ensemble,
    student: nn.Module,
    statistics: BatchNormDistance,
    config: DenseConfig,
    stream: torch.Generator,
) -> InversionLoss:
    """L_CE + L_BN + L_adv of images or their views. The student is in eval mode, not trained."""
    student.eval().requires_grad_(False)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        seen = crop_and_flip(images, stream) if config.views else images
        wanted = teacher(seen)
        value = config.ce * F.cross_entropy(wanted, labels)
        if config.bn:
            value = value + config.bn * statistics.value
        if config.adv:
            value = value + config.adv * boundary_support(student(seen), wanted)
        return value

    return loss


METHOD = Method(
    name="dense",
    config=DenseConfig,
    assign=assign,
    run=run,
    supports_dp=lambda settings: True,
    default_ranks=1,
    spaces=SPACES,
)
