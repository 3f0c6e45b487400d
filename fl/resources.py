"""The settings of clients' resources: cores, memory and GPU shares, by role and by model."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from fl.bounds import AtLeast, AtMost, Positive, Settings, Within
from fl.errors import UserError, unknown
from fl.json_files import JsonObject
from fl.models.registry import MODELS

QUANTITIES: Mapping[str, tuple[Callable[[str], float], str]] = {
    "cpus": (float, "a number"),
    "gpus": (float, "a number"),
    "memory_bytes": (int, "a number"),
    "shared": ({"true": True, "false": False}.__getitem__, "true or false"),
}
"""How a share's fields are read, and the kind of value for error messages."""
NAMED_ROLES = ("classifier", "generator", "condenser")
"""Roles with settings of their own; any other's are in ``roles``."""


@dataclass(frozen=True, kw_only=True)
class ShareConfig(Settings):
    """What a client asks of the machine. What is not set is measured."""

    cpus: Positive
    """Cores; also the number of threads, at least one."""
    gpus: Annotated[float, Within(0, 1)] | None = None
    """Share of one GPU, enforced; ignored without GPUs. Default: measured on one step."""
    memory_bytes: Annotated[int, AtLeast(0), AtMost(2**60)] | None = None
    """Bytes of main memory beyond the bare process, enforced; 0 for no limit. Default: measured on
    one step where there is no GPU, else no limit."""
    shared: bool = False
    """Let small clients with equal requests share processes, and train together if faster."""

    def check_further(self) -> None:
        """More than one core are whole cores."""
        if self.cpus > 1 and self.cpus != int(self.cpus):
            raise UserError(f"cpus above 1 must be whole, got {self.cpus}")


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig(Settings):
    """What clients ask of the machine: by role, and by model, which overrides the role."""

    classifier: ShareConfig = ShareConfig(cpus=1)
    generator: ShareConfig = ShareConfig(cpus=1, shared=True)
    condenser: ShareConfig = ShareConfig(cpus=1)
    roles: tuple[str, ...] = ()
    """Roles of other methods: ROLE.QUANTITY=VALUE, as in head.cpus=2. Default: one core each."""
    models: tuple[str, ...] = ()
    """Single models, over their role: MODEL.QUANTITY=VALUE, as in vgg9.gpus=0.5 cnn.cpus=2."""

    def check_further(self) -> None:
        """Each entry names a quantity that there is, with a value that it may have."""
        for setting in ("roles", "models"):
            for entry in getattr(self, setting):
                try:
                    _check_entry(setting, entry)
                except UserError as error:
                    raise UserError(f"{setting} {entry}: {error}") from None

    def share(self, role: str, model: str) -> ShareConfig:
        """What a client of that role and model asks for."""
        share: ShareConfig = getattr(self, role) if role in NAMED_ROLES else ShareConfig(cpus=1)
        for setting, wanted in (("roles", role), ("models", model)):
            for entry in getattr(self, setting):
                name, quantity, value = _parse(setting, entry)
                if name == wanted:
                    share = replace(share, **{quantity: value})  # type: ignore[arg-type]
        return share

    @staticmethod
    def setting(role: str) -> str:
        """The name of the setting of a role's share."""
        return f"resources.{role}" if role in NAMED_ROLES else f"resources.roles {role}"


def _check_entry(setting: str, entry: str) -> None:
    name, quantity, value = _parse(setting, entry)
    if setting == "roles" and name in NAMED_ROLES:
        raise UserError(f"use resources.{name} instead")
    shares: JsonObject = {"cpus": 1, quantity: value}
    ShareConfig(**shares)  # raises if the value is out of bounds


def _parse(setting: str, entry: str) -> tuple[str, str, float]:
    """Name, quantity and value of an entry such as ``vgg9.gpus=0.5``."""
    left, _, text = entry.partition("=")
    name, _, quantity = left.partition(".")
    quantity = quantity.replace("-", "_")
    if setting == "models" and name not in MODELS:
        raise unknown("model", name, MODELS)
    if quantity not in QUANTITIES:
        raise unknown("quantity", quantity, QUANTITIES)
    read, kind = QUANTITIES[quantity]
    try:
        value = read(text)
    except (ValueError, KeyError):
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{text!r} is not {kind}")
    return name, quantity, value
