"""What a client may be given of the machine, as the configuration says it."""

import math
from dataclasses import dataclass, replace
from typing import Any

from fl.errors import UserError, unknown
from fl.models import CLASSIFIERS, GENERATORS
from fl.validate import at_least, positive

QUANTITIES = {"cpus": float, "gpus": float, "memory_bytes": int}


@dataclass(frozen=True, kw_only=True)
class ShareConfig:
    """What a client asks of the machine. What is not said is measured."""

    cpus: float
    """Cores; also the number of threads, at least one."""
    gpus: float | None = None
    """Share of one GPU, enforced; counts where there are GPUs. Default: measured on one step."""
    memory_bytes: int | None = None
    """Bytes of main memory beyond the bare process, enforced; 0 for no limit. Default: measured on
    one step where there is no GPU, else no limit."""
    shared: bool = False
    """Light clients that ask for the same share processes, and train as one where it is quicker."""

    def check(self, setting: str) -> None:
        """Refuses impossible values; ``setting`` is what the configuration calls this record."""
        positive(f"{setting}.cpus", self.cpus)
        if self.cpus > 1 and self.cpus != int(self.cpus):
            raise UserError(f"{setting}.cpus above 1 must be whole, got {self.cpus}")
        if self.gpus is not None and not 0 <= self.gpus <= 1:
            raise UserError(f"{setting}.gpus must be in [0, 1], got {self.gpus}")
        if self.memory_bytes is not None:
            at_least(f"{setting}.memory_bytes", self.memory_bytes, 0)


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig:
    """What clients ask of the machine: by role, and by model above it."""

    classifier: ShareConfig = ShareConfig(cpus=1)
    generator: ShareConfig = ShareConfig(cpus=1, shared=True)
    condenser: ShareConfig = ShareConfig(cpus=1)
    models: tuple[str, ...] = ()
    """Single models, above their role: MODEL.QUANTITY=VALUE, as in vgg9.gpus=0.5 cnn.cpus=2."""

    def __post_init__(self) -> None:
        for role in ("classifier", "generator", "condenser"):
            getattr(self, role).check(f"resources.{role}")
        for entry in self.models:
            self.share("classifier", _parse(entry)[0]).check(f"resources.models {entry}:")

    def share(self, role: str, model: str) -> ShareConfig:
        """What a client of that role and model asks for."""
        share: ShareConfig = getattr(self, role)
        for entry in self.models:
            name, quantity, value = _parse(entry)
            if name == model:
                share = replace(share, **{quantity: value})
        return share


def _parse(entry: str) -> tuple[str, str, Any]:
    """Model, quantity and value of an entry such as ``vgg9.gpus=0.5``."""
    left, _, text = entry.partition("=")
    model, _, quantity = left.partition(".")
    quantity = quantity.replace("-", "_")
    models = (*CLASSIFIERS, *GENERATORS)
    if model not in models:
        raise unknown("model in resources.models", model, models)
    if quantity not in QUANTITIES:
        raise unknown(f"quantity of {model} in resources.models", quantity, QUANTITIES)
    try:
        value = QUANTITIES[quantity](text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"resources.models {entry}: {text!r} is not a number")
    return model, quantity, value
