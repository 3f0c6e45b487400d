"""A sweep as a Slurm job, as its page has it: trials, and the clients they train, on two nodes."""

from pathlib import Path

import pytest

from tests.cluster.commands import result
from tests.slurm.real import missing, real_slurm
from tests.tutorials import type_commands, write_files
from tests.waiting import wait_until

PAGE = "sweep.md"
CLASSIFIERS, GENERATORS = 2, 2
pytestmark = [*(pytest.mark.slurm, pytest.mark.ray, pytest.mark.slow), pytest.mark.timeout(900)]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_sweep_runs_over_an_allocation(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    write_files(PAGE, folder)
    short = tmp_path_factory.mktemp("slurm")  # a node's socket has at most 108 characters
    with real_slurm(short) as slurm:
        told = type_commands(PAGE, folder, slurm=True, environ=slurm.environ)
        job = next(line.split()[1] for line in told.splitlines() if line.startswith("job "))
        wait_until(lambda: slurm.state(job) in ("COMPLETED", "FAILED"))
    run = folder / "runs" / "there"
    log = (run / "slurm" / f"{job}_0_log.out").read_text()
    tried = result(run)["trials"]
    assert [t["status"] for t in tried] == ["finished"] * 3, log
    assert sum(t["clients_trained"] for t in tried) == CLASSIFIERS + 3 * GENERATORS
    assert "best     trial" in log
