"""A process that is not ours, on the host where a run is at work, gets in at no door."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cluster.hardware.private_folders import LOCK, temporary_folder
from cluster.hardware.ray_internals import AUTHENTICATION, DEFAULTS, OTHER_HOSTS, TOKEN
from tests.cluster.commands import command, environment, events
from tests.cluster.strangers import Door, answers, doors, environ, family, nobody_can
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

UNASKED = "ray::RankActor"
"""Whose ports ask for no token: beside the one of Ray's, a rank has one of gloo's, on the loopback
interface here. Who connects there without the ranks' secret is no rank (tests/fl/fusion)."""
JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print('in')"


@dataclass
class Run:
    """A run whose two ranks are fitting."""

    process: "subprocess.Popen[str]"
    family: list[psutil.Process]
    before: set[Door]
    """What listened while clients trained."""
    doors: set[Door]
    folders: list[Path]
    token: str
    address: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """At its end the run must be at work still, in spite of all that was tried."""
    root = tmp_path_factory.mktemp("strangers")
    long = ["--name=run", "--fusion-ranks=2", "--fusion.epochs=100000", "--classifier.epochs=3"]
    own = {k: v for k, v in environment().items() if k not in (TOKEN, AUTHENTICATION)}
    process = subprocess.Popen(
        command(root, *long), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=own
    )
    folder = root / "run"
    try:
        wait_until(lambda: "client_start" in kinds(folder))
        before = doors(family(process.pid))
        wait_until(lambda: "epoch" in kinds(folder))
        there = family(process.pid)
        raylet = next(p for p in there if p.name() == "raylet")
        yield Run(
            process,
            there,
            before,
            doors(there),
            locked_by(there),
            str(environ(raylet, TOKEN)),
            (folder / "ray-address").read_text().strip(),
        )
        done = kinds(folder).count("epoch")
        wait_until(lambda: kinds(folder).count("epoch") > done + 2)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate()
        assert process.returncode == 130, complaint
    finally:
        process.kill()


def locked_by(processes: list[psutil.Process]) -> list[Path]:
    """The folders that these processes hold, of all those beside them."""
    files: set[Path] = set()
    for process in processes:
        with suppress(psutil.Error):
            files |= {Path(file.path) for file in process.open_files()}
    return sorted({file.parent for file in files if file.name == LOCK})


def kinds(run_dir: Path) -> list[str]:
    return [e["event"] for e in events(run_dir)] if (run_dir / "metrics.jsonl").exists() else []


def test_nothing_of_ours_is_reached_from_another_host(run: Run) -> None:
    assert {door.process for door in run.before} >= {"gcs_server", "raylet"}
    # A run on one host documents no exception, so none is allowed here.
    assert not {door for door in run.before | run.doors if not door.local}


def test_no_server_of_rays_answers_without_the_token(run: Run) -> None:
    rays = 0
    for door in sorted((d for d in run.doors if d.tcp), key=lambda d: d.port):
        refused = answers(door.port), answers(door.port, "a" * 64)
        assert not any("OK" in answer for answer in refused), door
        if all("UNAUTHENTICATED" in answer for answer in refused):
            assert "OK" in answers(door.port, run.token)
            rays += 1
        elif door.process == "ray::RuntimeEnvAgent":
            assert _status(door) == 401
        else:
            assert door.process.startswith(UNASKED), door
    # The head's server, its node's two, this driver and both ranks.
    assert rays >= 6
    # No store of torch's listens: the ranks met in a file. One more port each is gloo's.
    ranks = [door for door in run.doors if door.process.startswith(UNASKED) and door.tcp]
    assert len(ranks) == 4


def _status(door: Door) -> int:
    """What asking for an environment is answered there."""
    there = f"http://{door.host}:{door.port}/get_or_create_runtime_env"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(there, data=b"", method="POST"), timeout=10
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


@pytest.fixture
def resting(run: Run) -> Iterator[None]:
    """The ranks rest meanwhile, and leave both cores to who has to wait for a refusal."""
    ranks = [p for p in run.family if p.name().startswith(UNASKED)]
    assert len(ranks) == 2
    for rank in ranks:
        rank.suspend()
    yield
    for rank in ranks:
        rank.resume()


@pytest.mark.usefixtures("resting")
def test_ray_lets_nobody_join_without_the_token(run: Run) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    plain |= DEFAULTS | {OTHER_HOSTS: "0", "HOME": "/nonexistent"}
    tries = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, run.address],
            env=plain | guess,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for guess in ({}, {AUTHENTICATION: "token", TOKEN: "a" * 64})
    ]
    for stranger in tries:
        printed, complaint = stranger.communicate()
        assert (stranger.returncode, printed) == (1, "")
        assert "Failed to connect" in complaint


def test_the_token_is_in_no_command_line(run: Run) -> None:
    assert len(run.token) == 64
    lines = [Path(f"/proc/{p.pid}/cmdline").read_text() for p in run.family if p.is_running()]
    assert any("raylet" in line for line in lines)
    assert not [line for line in lines if run.token in line]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_no_folder_and_no_environment(run: Run) -> None:
    assert nobody_can("ls", str(temporary_folder()))
    assert {f.name[:13] for f in run.folders} >= {"onefold-ranks"}
    assert any((folder / "r" / "session_latest").exists() for folder in run.folders)
    for folder in run.folders:
        assert not nobody_can("ls", str(folder))
        for below in [*folder.iterdir(), folder / "r" / "ray_current_cluster"]:
            assert not nobody_can("stat", str(below))
    raylet = next(p for p in run.family if p.name() == "raylet")
    assert not nobody_can("cat", f"/proc/{raylet.pid}/environ")
