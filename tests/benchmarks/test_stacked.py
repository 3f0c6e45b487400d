"""The benchmark of cohorts runs its ways to the end and tells of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import stacked
import torch
from stacked_way import ways


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    """The benchmark uses every core."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_way_is_timed_beside_the_baselines_and_told(
    tmp_path: Path, mnist_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last way alone: it has all that the others have, a pool on Ray and cohorts."""
    chosen = [*ways(4)[:2], ways(4)[-1]]
    monkeypatch.setattr(stacked, "ways", lambda clients: chosen)
    file = tmp_path / "figures.json"
    assert stacked.main(stacked.Options(clients=4, rounds=1, data_root=mnist_root, json=file)) == 0
    figures = json.loads(file.read_text())
    assert list(figures["ways"]) == [way.name for way in chosen]
    for row in figures["ways"].values():
        assert row["clients_per_second"] > 0
        assert row["peak_bytes"] > 2**26
        assert row["ready_seconds"] > 0
    ratios = [row["over_one_by_one"] for row in list(figures["ways"].values())[:2]]
    assert max(ratios) == 1
