"""What of a run stands in metrics.jsonl."""

from contextlib import closing
from pathlib import Path

import pytest

from cluster.run.runner import JsonLines
from fl.events import ClientProgress, RunEnd, RunStart, parse_events


def test_every_event_is_a_line_but_for_clients_progress(tmp_path: Path) -> None:
    told = [RunStart(run="a"), ClientProgress(client=1, done=1, of=2, loss=0.5), RunEnd(accuracy=1)]
    with closing(JsonLines(tmp_path / "metrics.jsonl")) as lines:
        for event in told:
            lines(event)
    written = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert list(parse_events(written)) == [told[0], told[2]]


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    lines = JsonLines(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        lines(RunStart(run="a", rounds=1))
    with pytest.raises(OSError, match="No space left"):
        lines.close()
