"""Any method's settings, made so small that a run takes no time."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

SMALL = {
    "epochs": 2,
    "steps": 2,
    "batch_size": 16,
    "width": 0.05,
    "small_width": 0.3,
    "large_width": 0.02,
    "global_width": 0.05,
    "latent": 4,
    "num_samples": 24,
    "open_samples": 24,
    "images_per_class": 1,
}
"""Settings by name, wherever among a method's they are."""


def small(config: Any) -> Any:
    """The settings, with those that cost time made small, in the records within them too."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    nested = {name: small(value) for name, value in values.items() if is_dataclass(value)}
    return replace(config, **nested, **{name: SMALL[name] for name in SMALL.keys() & values})
