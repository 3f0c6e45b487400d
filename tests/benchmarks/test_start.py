"""The benchmark of a launch's start tells its moments, in their order."""

import json
from pathlib import Path

import pytest
import start

from tests.cluster.commands import SMALL


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_moment_of_a_launch_is_timed_beside_an_older_commit(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = start.Options(rounds=1, cold=True, against="HEAD", json=file, arguments=tuple(SMALL))
    assert start.main(options) == 0
    rows = json.loads(file.read_text())["rows"]
    assert list(rows) == ["old, HEAD", "new"]
    for row in rows.values():
        moments = [row[name] for name in start.MOMENTS]
        assert moments == sorted(moments)
        assert row["end, cpu"] > row["first client at work, cpu"] > 0
        assert all(row[name] > 0 for name in start.IN_PYTHON)


def test_what_processors_spent_is_that_of_the_last_moment_before() -> None:
    assert start.spent_until([(0.0, 0.0), (5.0, 1.0), (6.0, 2.0)], 5.5) == 1.0


def test_what_was_not_seen_of_the_old_has_no_ratio() -> None:
    assert start.ratio(2.0, 1.0) == "0.50"
    assert start.ratio(0.0, 1.0) == "-"
