"""scikit-learn's small data sets go through a run; small_sets.py runs them on Ray too."""

from pathlib import Path

import pytest

from tests.onefold.small_sets import LEAST, run
from tests.registries import registries_restored
from tests.undrawn import WRITE_REPORT, draw_nothing


@pytest.mark.parametrize("name", LEAST)
def test_a_set_is_learned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)
    with registries_restored():
        assert run(name, "inprocess", output_dir=tmp_path).accuracy > LEAST[name]
