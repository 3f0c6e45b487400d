"""How a client condenses its data: the record that, with shard and seed, determines its upload."""

from dataclasses import dataclass
from typing import Literal

from fl.condensation.augment import KINDS
from fl.errors import UserError
from fl.models import CLASSIFIERS
from fl.validate import at_least, choice, positive


@dataclass(frozen=True, kw_only=True)
class CondensationConfig:
    """Learning of condensed images by distribution matching, sized for a laptop."""

    model: str = "convnet"
    """Architecture of the global model, whose features are matched: convnet, resnet18, cnn or
    vgg9."""
    width: float = 0.25
    """Factor on its channels and hidden units; 1 is the paper's size."""
    images_per_class: int = 10
    """Condensed images of each class the client holds, however many samples it has (IPC)."""
    min_samples: int = 1
    """Classes of which the client has fewer samples are left out."""
    steps: int = 50
    """Steps of SGD on the images."""
    lr: float = 1.0
    """Image learning rate."""
    momentum: float = 0.9
    """Momentum of SGD."""
    clip: float | None = None
    """Norm to which the gradient of all images together is cut. Default: not cut."""
    batch_size: int = 32
    """Real samples of each class per step; a class with fewer repeats them."""
    init: Literal["average", "noise"] = "average"
    """What images start from: averages of random local ones of their class, or noise."""
    averaged: int = 5
    """Local images in each of those averages; 1 starts from real images."""
    gamma: float = 1.0
    """Share of the global model in the network of each step; the rest is a fresh random one."""
    rho: float = 0.0
    """Radius around the global model within which the network of each step is drawn; 0: none."""
    network: Literal["train", "eval"] = "train"
    """Mode of the network: train normalises by the statistics of the step's batch, of all classes
    together; eval by the global model's running ones."""
    collaboration: float = 0.0
    """Weight of the sliced Wasserstein distance between the images' class-wise mean logits and all
    clients' (lambda_loc); 0 leaves the term out."""
    projections: int = 0
    """Random directions of that distance; 0 takes its closed form."""
    temperature: float = 1.0
    """Temperature tau of the soft labels."""
    augment: tuple[str, ...] = ()
    """Differentiable augmentations, of which each step draws one for real and condensed images
    alike: brightness, contrast, saturation, shift, scale, rotate, flip, cutout."""
    pixels: Literal["float", "uint8"] = "float"
    """How images are uploaded; uint8 rounds them to 8 bits, as the paper counts them."""

    def __post_init__(self) -> None:
        choice("condensation.model", self.model, CLASSIFIERS)
        for name in ("width", "lr", "temperature"):
            positive(f"condensation.{name}", getattr(self, name))
        for name in ("images_per_class", "min_samples", "steps", "batch_size", "averaged"):
            at_least(f"condensation.{name}", getattr(self, name), 1)
        at_least("condensation.projections", self.projections, 0)
        if self.clip is not None:
            positive("condensation.clip", self.clip)
        if not 0 <= self.momentum < 1:
            raise UserError(f"condensation.momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.gamma <= 1:
            raise UserError(f"condensation.gamma must be in [0, 1], got {self.gamma}")
        for name in ("rho", "collaboration"):
            if not getattr(self, name) >= 0:
                raise UserError(
                    f"condensation.{name} must not be negative, got {getattr(self, name)}"
                )
        choice("condensation.init", self.init, ("average", "noise"))
        choice("condensation.network", self.network, ("train", "eval"))
        choice("condensation.pixels", self.pixels, ("float", "uint8"))
        for name in self.augment:
            choice("condensation.augment", name, KINDS)

    def work(self, num_samples: int) -> int:
        """Samples passed through the model, were each step to see all the client has."""
        return self.steps * num_samples
