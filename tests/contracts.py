"""Contracts with libraries: what a test expects of something that they do not promise to keep."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version


@contextmanager
def contract(library: str, internal: str, tested_with: str) -> Iterator[None]:
    """Whatever fails inside says what changed, and with which version it was still as expected."""
    try:
        yield
    except Exception as error:
        raise AssertionError(
            f"{internal} changed: {library} {version(library)}, tested with {tested_with}: {error}"
        ) from error
