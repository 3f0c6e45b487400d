"""Runs on a real Slurm of two nodes: the same result as here, also after the worst."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from slurm import array, status
from slurm.status import read_state
from tests.cluster.commands import (
    SMALL,
    command,
    events,
    fingerprint,
    here,
    kinds,
    launch,
    result,
    run,
)
from tests.cluster.fake_driver import card, pretended
from tests.cluster.strangers import named
from tests.slurm.real import NODES, RealSlurm, missing, real_slurm
from tests.tutorials import type_commands, write_files
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.slow]

TWO_NODES = ["--slurm", "--slurm.nodes=2", "--slurm.cpus-per-task=2", "--slurm.mem-gb=3"]
OWN_METHOD = "own-method.md"
LONG = ["--name=run", "--classifier.epochs=25", "--generator.epochs=40"]
"""Long enough to be disturbed in the middle, on whatever machine."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with real_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The long run on this machine."""
    root = tmp_path_factory.mktemp("undisturbed")
    done = launch(root, *LONG, "--runtime=inprocess")
    assert done.returncode == 0, done.stderr
    return root / "run"


def call(
    slurm: RealSlurm, output_dir: Path, *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    return run(command(output_dir, *arguments), drawn=True, **(slurm.environ | environ))


def submit(slurm: RealSlurm, output_dir: Path, *arguments: str) -> str:
    """Submits over both nodes and returns the job's id."""
    done = call(slurm, output_dir, *TWO_NODES, *arguments)
    assert done.returncode == 0, done.stderr
    (job,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("job "))
    return job


def has_ended(run_dir: Path) -> bool:
    state = read_state(run_dir)
    return state is not None and state.phase == "ended"


def logs(run_dir: Path) -> str:
    return "\n".join(
        f"{file}: {file.read_text(errors='replace')[-3000:]}"
        for file in sorted((run_dir / "slurm").rglob("*"))
        if file.suffix in (".out", ".log", ".json")
    )


def nobody_left(slurm: RealSlurm) -> None:
    wait_until(lambda: not any(map(slurm.processes_of, NODES)), within=90)


def test_a_run_over_two_nodes_equals_one_here(slurm: RealSlurm, tmp_path: Path) -> None:
    here = launch(tmp_path, "--name=here", "--runtime=inprocess")
    assert here.returncode == 0, here.stderr
    # From inside of what looks like another allocation, into a directory with spaces.
    outer = {"SLURM_JOB_ID": "999", "SLURM_CPUS_PER_TASK": "7", "SLURM_NTASKS": "5"}
    driver = pretended(tmp_path, card("GPU-11111111-2222-3333-4444-555555555555"))
    there = tmp_path / "over there"
    asked = [*TWO_NODES, "--name=run", "--slurm.gpus-per-node=1", "--slurm.time=10"]
    plan = call(slurm, there, *asked, "--dry-run")
    done = call(slurm, there, *asked, "--wait", **outer, **driver)
    assert done.returncode == 0, done.stdout + done.stderr + logs(there / "run")
    # Every upload to the bit; what two ranks, one per GPU, fuse of them but for rounding.
    assert fingerprint(there / "run")[2] == fingerprint(tmp_path / "here")[2]
    model, expected = (
        load_file(r / "model" / "global.safetensors") for r in (there / "run", tmp_path / "here")
    )
    torch.testing.assert_close(model, expected, rtol=1e-3, atol=1e-5)
    figures = result(there / "run")
    assert figures["fusion"]["ranks"] == 2
    assert abs(figures["accuracy"] - result(tmp_path / "here")["accuracy"]) <= 0.02
    placements = figures["placements"]
    assert {p["node"] for p in placements} == {"alpha", "beta"}
    assert all(0 < p["assigned"]["GPU"] < 1 for p in placements)
    # What was announced is what was done, and told.
    (script,) = (there / "run" / "slurm").glob("*_submission.sh")
    assert script.read_text() in plan.stdout
    assert "fusion epoch 2/2" in done.stdout
    assert "accuracy" in done.stdout.splitlines()[-2]
    nobody_left(slurm)


def test_an_own_method_model_and_array_run_over_two_nodes(slurm: RealSlurm, tmp_path: Path) -> None:
    """As their page has it; only the node that starts the run looks at the user's file."""
    write_files(OWN_METHOD, tmp_path)
    type_commands(OWN_METHOD, tmp_path, slurm=True, environ=slurm.environ)
    figures = result(tmp_path / "runs" / "there")
    assert (figures["method"], figures["runtime"], figures["rounds"]) == ("fedmedian", "ray", 2)
    assert {p["model"] for p in figures["placements"]} == {"net"}
    assert {p["node"] for p in figures["placements"]} == {"alpha", "beta"}
    nobody_left(slurm)


def test_a_preempted_run_continues_where_it_was(
    slurm: RealSlurm, undisturbed: Path, tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path, *LONG)
    run_dir = tmp_path / "run"
    wait_until(lambda: "client_end" in kinds(run_dir))
    slurm.call("scancel", "--signal=USR2", job)
    wait_until(lambda: slurm.state(job) == "COMPLETED")
    state = read_state(run_dir)
    assert state is not None, logs(run_dir)
    assert (state.job, state.status, state.restarts) == (job, 0, 1), logs(run_dir)
    assert fingerprint(run_dir) == fingerprint(undisturbed)
    reused = [e["reused"] for e in events(run_dir) if e["event"] == "client_end"]
    assert 1 <= sum(reused) <= 4
    assert kinds(run_dir).count("run_start") == 2
    nobody_left(slurm)


def test_an_array_of_runs_finishes(slurm: RealSlurm, tmp_path: Path) -> None:
    runs = tmp_path / "runs.txt"
    runs.write_text("--name=one --seed=1\n--name=two --seed=2\n")
    asked = ["--slurm.cpus-per-task=1", "--slurm.mem-gb=2", "--runtime=inprocess"]
    root = f"--output-dir={tmp_path / 'a b'}"
    done = here(array.main, [str(runs), *SMALL, root, *asked], **slurm.environ)
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        folder = tmp_path / "a b" / name
        wait_until(lambda folder=folder: has_ended(folder))
        assert result(folder)["seed"] == {"one": 1, "two": 2}[name]
    listed = here(status.main, [root], **slurm.environ)
    assert listed.stdout.count("finished") == 2
    assert listed.stdout.count("4 of 4") == 2


def test_a_cancelled_run_leaves_no_process(slurm: RealSlurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, *LONG)
    run_dir = tmp_path / "run"
    wait_until(lambda: "client_start" in kinds(run_dir))
    assert named(slurm.processes_of("beta"), "raylet")
    slurm.call("scancel", job)
    wait_until(lambda: slurm.state(job) == "CANCELLED")
    nobody_left(slurm)
    assert "run_end" not in kinds(run_dir)


def test_a_run_survives_the_death_of_a_node(
    slurm: RealSlurm, undisturbed: Path, tmp_path: Path
) -> None:
    submit(slurm, tmp_path, *LONG)
    run_dir = tmp_path / "run"
    wait_until(lambda: kinds(run_dir).count("client_start") >= 4)  # some of them on beta
    beta = slurm.processes_of("beta")
    dead = [psutil.Process(slurm.daemons["beta"].pid), *beta]
    dead += steps_above(beta)
    for process in dead:
        with contextlib.suppress(ProcessLookupError):  # some end with one that was killed before
            os.kill(process.pid, signal.SIGKILL)
    try:
        wait_until(lambda: has_ended(run_dir))
        state = read_state(run_dir)
        assert state is not None
        assert state.status == 0, logs(run_dir)
        assert fingerprint(run_dir) == fingerprint(undisturbed)
        failed = [e["reason"] for e in events(run_dir) if e["event"] == "client_failed"]
        assert failed
        nobody_left(slurm)
    finally:
        slurm.daemons["beta"].wait()
        slurm.start_node("beta")


def steps_above(children: list[psutil.Process]) -> list[psutil.Process]:
    """The slurmstepd above each of the processes, of which some may have ended."""
    parents = set()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            parents.add(child.ppid())
    named = psutil.process_iter(["name"])
    return [p for p in named if p.pid in parents and p.info["name"].startswith("slurmstepd")]
