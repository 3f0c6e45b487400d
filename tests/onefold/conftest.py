"""What tests of the users' door share: a folder of their own, and no report."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registries import registries_restored
from tests.undrawn import WRITE_REPORT, draw_nothing


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder; what a test registers is gone after it."""
    monkeypatch.chdir(tmp_path)
    with registries_restored():
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no report, which takes longer than a small run."""
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)
