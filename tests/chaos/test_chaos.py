"""Whatever breaks, a run ends with the undisturbed bits, or in one clear line, and goes on."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.conftest import Undisturbed
from tests.chaos.faults import FAULTS, NONE_LEFT, Run
from tests.cluster.commands import fingerprint

pytestmark = [*(pytest.mark.slow, pytest.mark.chaos, pytest.mark.ray), pytest.mark.timeout(900)]
KILLED = -9


def test_a_run_survives_the_fault(
    number: str,
    fault: str,
    folder: Path,
    undisturbed: Callable[[str], Undisturbed],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("fault", fault)
    runtime, strike = FAULTS[fault]
    run, reference = Run(folder, runtime, drawn=fault == "disk"), undisturbed(runtime)
    what = f"fault {number}, {fault}: {strike(run, random.Random(number), reference.seconds)}"
    status = run.end()
    if status == 0 and fault != "bit":
        assert fingerprint(run.run_dir) == reference.bits, what
        late = what.endswith(NONE_LEFT)
        record_property("ended", "over before" if late else "went on to the same bits")
        return
    if status not in (0, KILLED):
        refuse_traceback(run, what)
    refused = run.whole("--resume")
    kept = run.run_dir
    if refused:  # in one line, and then a new run beside it does, with the same store
        assert fault == "bit", f"{what}\n{run.output}"
        assert refused == 2, f"{what}\n{run.output}"
        refuse_traceback(run, what)
        kept = run.folder / "again"
        assert run.whole("--name=again") == 0, f"{what}\n{run.output}"
    assert fingerprint(kept) == reference.bits, f"{what}\n{run.output}"
    end = "refused in one line" if refused else "resumed to the same bits"
    record_property("ended", f"stopped, then {end}")


def refuse_traceback(run: Run, what: str) -> None:
    """A run that stopped says why in a line of ours."""
    assert "Traceback (most recent call last)" not in run.output, f"{what}\n{run.output}"
    lines = [line for line in run.output.splitlines() if line.startswith("onefold: ")]
    assert len(lines) == 1, f"{what}\n{run.output}"
