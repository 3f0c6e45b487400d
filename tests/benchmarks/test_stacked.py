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
def test_a_way_is_timed_beside_the_baselines_and_told(tmp_path: Path, mnist_root: Path) -> None:
    """The last way alone: it has all that the others have, a pool on Ray and cohorts."""
    names = tuple(way.name for way in (*ways(4)[:2], ways(4)[-1]))
    file = tmp_path / "figures.json"
    options = stacked.Options(clients=4, rounds=1, ways=names, data_root=mnist_root, json=file)
    assert stacked.main(options) == 0
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["name"] for row in told if row["kind"] == "way"] == [*names]
    rows = [row for row in told if row["kind"] == "summary"]
    assert [row["name"] for row in rows] == [*names]
    for row in rows:
        assert row["clients_per_second"] > 0
        assert row["peak_bytes"] > 2**26
        assert row["ready_seconds"] > 0
    ratios = [row["over_one_by_one"] for row in rows[:2]]
    assert max(ratios) == 1
