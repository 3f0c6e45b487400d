"""What a test registers is gone after it."""

from collections.abc import Iterator
from contextlib import contextmanager

from fl.data.catalogue import REGISTERED
from fl.methods.registry import METHODS
from fl.models.registry import CLASSIFIERS, GENERATORS


@contextmanager
def registries_restored() -> Iterator[None]:
    """Inside, models, methods and data sets may be registered."""
    registries = (CLASSIFIERS, GENERATORS, METHODS, REGISTERED)
    before = [dict(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, was in zip(registries, before, strict=True):
            registry.clear()  # type: ignore[attr-defined]
            registry.update(was)  # type: ignore[attr-defined]
