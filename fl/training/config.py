"""How one client trains: the records that, with shard and seed, determine what it uploads."""

from dataclasses import dataclass
from math import inf
from typing import Literal

from fl.condensation.config import LocalCondensation
from fl.errors import UserError
from fl.models import CLASSIFIERS, GENERATORS
from fl.validate import at_least, choice, positive


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """Local training of a classifier client (Eq. 2)."""

    model: str = "vgg9"
    """Classifier architecture: vgg9, cnn, convnet, resnet18, efficientnet-v2, resnet50 or
    mobilenet-v2."""
    width: float = 0.25
    """Factor on channels and hidden units; 1 is the paper's size."""
    epochs: int = 30
    """Local epochs."""
    patience: int | None = None
    """Epochs without a lower training loss after which a client stops. Default: it never does."""
    lr: float = 0.02
    """Learning rate."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Local optimiser; sgd uses the momentum below."""
    momentum: float = 0.9
    """Momentum of sgd."""
    batch_size: int = 16
    """Samples per step."""
    proximal: float = 0.0
    """FedProx's mu: mu/2 times the squared distance from the weights at the start of the round is
    added to the loss. 0: nothing is."""

    def __post_init__(self) -> None:
        choice("classifier.model", self.model, CLASSIFIERS)
        positive("classifier.width", self.width)
        at_least("classifier.epochs", self.epochs, 1)
        if self.patience is not None:
            at_least("classifier.patience", self.patience, 1)
        positive("classifier.lr", self.lr)
        at_least("classifier.batch_size", self.batch_size, 1)
        if not 0 <= self.momentum < 1:
            raise UserError(f"classifier.momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.proximal < inf:
            raise UserError(f"classifier.proximal must be 0 or more, got {self.proximal}")

    def work(self, num_samples: int) -> int:
        """Samples passed through the model."""
        return self.epochs * num_samples


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """Local training of a generator client (Eq. 3, with Adam)."""

    model: str = "cvae-small"
    """Generator architecture: cvae-small, cvae-large or cvae-cifar."""
    width: float = 1.0
    """Factor on channels and hidden units; 1 is the paper's size."""
    latent: int = 20
    """Size of the latent code z."""
    epochs: int = 80
    """Local epochs."""
    patience: int | None = None
    """Epochs without a lower training loss after which a client stops. Default: it never does."""
    lr: float = 2e-3
    """Learning rate of Adam."""
    batch_size: int = 16
    """Samples per step."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Eq. 3 divided by the batch size, or summed over it as in the released code."""
    upload: Literal["decoder", "cvae"] = "decoder"
    """What leaves the client beside its label counts; cvae is the released code's way."""

    def __post_init__(self) -> None:
        choice("generator.model", self.model, GENERATORS)
        positive("generator.width", self.width)
        at_least("generator.latent", self.latent, 1)
        at_least("generator.epochs", self.epochs, 1)
        if self.patience is not None:
            at_least("generator.patience", self.patience, 1)
        positive("generator.lr", self.lr)
        at_least("generator.batch_size", self.batch_size, 1)

    def work(self, num_samples: int) -> int:
        """Samples passed through the model."""
        return self.epochs * num_samples


LocalConfig = ClassifierConfig | GeneratorConfig | LocalCondensation
