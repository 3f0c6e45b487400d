"""A script runs in a fork of the template, or where there is none in a process that is started."""

import json
import os
import time
from pathlib import Path

import pytest

from cluster.hardware import fork_worker
from cluster.profiling.steps import run_script

SCRIPT = """
import json, os, sys
loaded = "torch" in sys.modules
with open(0, "rb") as given, open(1, "w") as told, open(2, "w") as errors:
    json.dump([given.read().hex(), os.getppid(), loaded], told)
    errors.write("an error")
"""


@pytest.fixture(params=["forked", "started"])
def forked(
    request: pytest.FixtureRequest, template: Path | None, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether there is a template; else an address at which none listens."""
    is_forked = request.param == "forked"
    if is_forked and template is None:
        pytest.skip("no template where there are GPUs")
    monkeypatch.setenv(fork_worker.TEMPLATE, str(template) if is_forked else "gone")
    return is_forked


def test_it_reads_what_it_is_given_and_what_it_writes_is_returned(
    forked: bool, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    given = bytes(range(256)) * 1024  # more than a pipe holds
    told, errors = run_script(script, given, 60)
    read, parent, has_torch = json.loads(told)
    assert bytes.fromhex(read) == given
    assert (parent != os.getpid(), has_torch) == (forked, forked)
    assert errors == b"an error"


def test_one_that_fails_says_why_in_its_last_line(forked: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("open(1, 'w').write('half')\nraise ValueError('the reason')")
    told, errors = run_script(script, b"", 60)
    assert told == b"half"
    assert errors.splitlines()[-1] == b"ValueError: the reason"


@pytest.mark.usefixtures("forked")
def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    script, pid = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(
        f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    with pytest.raises(TimeoutError):
        run_script(script, b"", 1)
    process = Path("/proc") / pid.read_text()
    deadline = time.monotonic() + 30
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not process.exists()
