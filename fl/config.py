"""The run's configuration: one tree of frozen records, validated as it is built."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import tyro

from fl.data.datasets import INFO, NAMES
from fl.data.domains import NAME as FOLDER
from fl.data.domains import find_names
from fl.data.partition import PartitionConfig
from fl.errors import UserError
from fl.federation import Problem
from fl.methods.registry import get_method
from fl.resources import ResourcesConfig
from fl.validate import at_least, choice, positive

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How much of the data set to use."""

    max_train: int | None = None
    """Use this many training images at most, a fixed random subset."""
    max_test: int | None = None
    """Use this many test images at most, a fixed random subset."""
    folder: str | None = None
    """Of data set folder: where a folder per domain lies, in each a folder per class (DomainNet's
    layout). A fifth of each domain's images, drawn by the seed, is the test split."""
    side: int = 64
    """Of data set folder: images are scaled to this many pixels in height and width."""
    validation: float = 0.0
    """Share of the training images that no client gets; accuracy is measured on them, and not on
    the test split. 0: on the test split. For choosing settings."""

    def __post_init__(self) -> None:
        for name in ("max_train", "max_test"):
            if getattr(self, name) is not None:
                at_least(f"data.{name}", getattr(self, name), 1)
        at_least("data.side", self.side, 1)
        if not 0 <= self.validation < 1:
            raise UserError(f"data.validation must be from 0 to below 1, got {self.validation}")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Generic[Options]):
    """Everything that determines a run's result."""

    method: str = "fedmho-sd"
    """Method: fedmho, fedmho-md, fedmho-sd, fedavg, fedprox, feddf, dense, co-boosting,
    fedcvae-ens, fedcvae-kd, feddm or fedaf."""
    dataset: str = "digits"
    """Data set: digits, mnist, fmnist, emnist, svhn, cifar10, cifar100, or folder: images of
    several domains, for which see data.folder and partition.kind domains."""
    alpha: float = 0.5
    """Concentration of the Dirichlet label partition; smaller is more skewed."""
    num_clients: int = 10
    """Clients, K."""
    rounds: int = 1
    """Communication rounds; one for all methods but fedavg, fedprox, feddf, feddm and
    fedaf."""
    seed: int = 0
    """Seed of everything random."""
    fid: bool = False
    """Also measure how far the synthetic images are from the real training images, by a network of
    our own: see fl/metrics/fid.py."""
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    resources: ResourcesConfig = ResourcesConfig()
    options: Annotated[Options, tyro.conf.arg(name="")]

    def __post_init__(self) -> None:
        choice("data set", self.dataset, (*NAMES, FOLDER))
        if (self.dataset == FOLDER) != (self.data.folder is not None):
            raise UserError("data set folder and data.folder go together: name both or none")
        if self.partition.kind == "domains" and self.dataset != FOLDER:
            raise UserError(f"partition.kind domains needs data set folder, got {self.dataset}")
        positive("alpha", self.alpha)
        at_least("num_clients", self.num_clients, 1)
        at_least("rounds", self.rounds, 1)
        if get_method(self.method).one_shot and self.rounds != 1:
            raise UserError(f"{self.method} is a one-shot method: rounds must be 1")

    @property
    def problem(self) -> Problem:
        """The shape of the task, known without reading an image."""
        if self.data.folder is not None:
            domains, classes = find_names(Path(self.data.folder))
            shape = (3, self.data.side, self.data.side)
            return Problem(
                image_shape=shape, num_classes=len(classes), seed=self.seed, domains=domains
            )
        info = INFO[self.dataset]
        return Problem(image_shape=info.image_shape, num_classes=info.num_classes, seed=self.seed)
