import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from cluster.checks.check import Result
from cluster.checks.found import Found, Slurm, look_around
from cluster.checks.report import (
    advice_table,
    as_json,
    found_table,
    heading,
    is_fit,
    result_line,
    verdict,
)
from cluster.hardware.gpus import Gpu

PASSED = Result(name="Ray", status="passed", seconds=3.21, finding="it starts")
SKIPPED = Result(name="NCCL", status="skipped", seconds=0.0, finding="no GPU")
FAILED = Result(
    name="distance filter", status="failed", seconds=104.0, finding="[wrong]", advice="[repair] it"
)
OTHER = replace(FAILED, name="locks")


@pytest.fixture
def found(tmp_path: Path) -> Found:
    return look_around(tmp_path, {"PATH": ""})


def text(*tables: Table, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for table in tables:
            console.print(table)
    return captured.get()


def test_checks_that_were_skipped_make_no_machine_unfit() -> None:
    assert is_fit([PASSED, SKIPPED])
    assert verdict([PASSED, SKIPPED]) == "fit: 1 checks passed, 1 skipped"
    assert verdict([PASSED]) == "fit: 1 checks passed"


def test_the_verdict_names_what_failed() -> None:
    results = [PASSED, SKIPPED, FAILED, OTHER]
    assert not is_fit(results)
    assert verdict(results) == "not fit: 2 of 3 checks failed: distance filter, locks"


def test_advice_for_several_checks_is_given_once() -> None:
    lines = text(advice_table([PASSED, SKIPPED, FAILED, OTHER])).splitlines()
    assert [line.rstrip() for line in lines] == ["distance filter  [repair] it", "locks"]


@pytest.mark.parametrize("width", [80, 50])
def test_lines_are_columns_that_cut_nothing(width: int) -> None:
    long = replace(FAILED, finding="rank 1 of the server died of something that takes many words")
    shown = text(heading(), *map(result_line, (PASSED, SKIPPED, FAILED, long)), width=width)
    lines = shown.splitlines()
    assert all(len(line) <= width for line in lines)
    start = lines[0].index("finding")
    assert lines[1].split() == ["Ray", "passed", "3.2", "s", "it", "starts"]
    assert lines[1].index("it starts") == lines[3].index("[wrong]") == start
    assert lines[2].split() == ["NCCL", "skipped", "no", "GPU"]
    assert "104.0 s" in lines[3]
    told = " ".join(line[start:].strip() for line in lines[4:])
    assert told == long.finding


def test_what_was_found_fits_a_terminal(found: Found) -> None:
    gpu = Gpu(uuid="GPU-1", name="NVIDIA H200", memory_bytes=150 * 10**9)
    small = replace(gpu, name="NVIDIA H200 MIG 1g.18gb", memory_bytes=18 * 10**9, mig=True)
    rich = replace(
        found,
        machine=replace(found.machine, gpus=(gpu, gpu, small)),
        driver="550.54",
        notes=("something [odd]",),
        slurm=Slurm(sbatch="/bin/sbatch", job="12", node="alpha", nodes="alpha,beta", num_nodes=2),
    )
    lines = text(found_table(rich)).splitlines()
    assert all(len(line) <= 80 for line in lines)
    shown = " ".join(" ".join(lines).split())
    assert (
        "2 x NVIDIA H200 (150.0 GB), 1 x NVIDIA H200 MIG 1g.18gb (18.0 GB), driver 550.54" in shown
    )
    assert "sbatch is there; in job 12 on alpha,beta, of which only alpha is checked" in shown
    assert "something [odd]" in shown
    assert "GPUs none" in " ".join(text(found_table(found)).split())
    assert "no sbatch; in no job" in text(found_table(found))


def test_programs_are_told_everything(found: Found) -> None:
    told = json.loads(json.dumps(as_json(found, [PASSED, FAILED])))
    assert told["fit"] is False
    assert told["verdict"].startswith("not fit: 1 of 2")
    assert told["checks"][1]["advice"] == "[repair] it"
    assert told["found"]["machine"]["cpus"] == found.machine.cpus
