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
from cluster.hardware.ray_internals import AUTHENTICATION, DEFAULTS, OTHER_HOSTS, PORT_S, TOKEN
from fl.own_process import LAST_RESORT_S
from tests.cluster.commands import command, environment, events, kinds
from tests.cluster.living import await_end, wait_for
from tests.cluster.strangers import Door, answers, doors, environ, family, named, nobody_can
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
    """At its end the run must be at work still, in spite of all that was tried; interrupted then,
    it leaves no process."""
    root = tmp_path_factory.mktemp("strangers")
    long = ["--name=run", "--fusion-ranks=2", "--fusion.epochs=100000", "--classifier.epochs=3"]
    own = {k: v for k, v in environment().items() if k not in (TOKEN, AUTHENTICATION)}
    process = subprocess.Popen(
        command(root, *long), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=own
    )
    folder = root / "run"
    try:
        wait_for(process, lambda: "client_start" in kinds(folder))
        before = doors(family(process.pid))
        wait_for(process, lambda: "epoch" in kinds(folder))
        there = family(process.pid)
        (raylet,) = named(there, "raylet")
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
        wait_for(process, lambda: kinds(folder).count("epoch") > done + 2)
        process.send_signal(signal.SIGINT)
        # It ends itself after LAST_RESORT_S; Ray, were it waited for, would take half a minute.
        wait_until(lambda: process.poll() is not None, within=LAST_RESORT_S + 20)
        _, complaint = process.communicate()
        assert process.returncode == 130, complaint
        await_end(there)
        assert events(folder)  # every line is whole
    finally:
        process.kill()


def locked_by(processes: list[psutil.Process]) -> list[Path]:
    """The folders that these processes hold, of all those beside them."""
    files: set[Path] = set()
    for process in processes:
        with suppress(psutil.Error):
            files |= {Path(file.path) for file in process.open_files()}
    return sorted({file.parent for file in files if file.name == LOCK})


def test_nothing_of_ours_is_reached_from_another_host(run: Run) -> None:
    assert {door.process for door in run.before} >= {"gcs_server", "raylet"}
    # A run on one host documents no exception, so none is allowed here.
    assert not {door for door in run.before | run.doors if not door.local}


def test_no_server_of_rays_answers_without_the_token(run: Run) -> None:
    asked = [door for door in run.doors if door.tcp and not door.process.startswith(UNASKED)]
    # The head's server, its node's two and this driver.
    assert sum(refuses_strangers(door, run.token, within_s=60) for door in asked) >= 4
    for door in asked:
        assert door.process != "ray::RuntimeEnvAgent" or _status(door) == 401
    # No store of torch's listens: the ranks met in a file. One more port each is gloo's, which
    # answers nobody; Ray's own may take its time, as the ranks are at work.
    ranks = [door for door in run.doors if door.tcp and door.process.startswith(UNASKED)]
    assert len(ranks) == 4
    wait_until(lambda: sum(refuses_strangers(door, run.token) for door in ranks) == 2)


def refuses_strangers(door: Door, token: str, within_s: float = 3) -> bool:
    """Whether a server of Ray's answers there who has the token, and nobody else."""
    refused = answers(door.port, None, within_s), answers(door.port, "a" * 64, within_s)
    assert not any("OK" in answer for answer in refused), door
    if not all("UNAUTHENTICATED" in answer for answer in refused):
        assert door.process.startswith(("ray::RuntimeEnvAgent", UNASKED)), door
        return False
    return "OK" in answers(door.port, token, within_s)


def _status(door: Door) -> int:
    """What asking for an environment is answered there."""
    there = f"http://{door.host}:{door.port}/get_or_create_runtime_env"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(there, data=b"", method="POST")
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


@pytest.fixture
def resting(run: Run) -> Iterator[None]:
    """The ranks rest meanwhile, and leave both cores to who has to wait for a refusal."""
    ranks = named(run.family, UNASKED)
    assert len(ranks) == 2
    for rank in ranks:
        rank.suspend()
    yield
    for rank in ranks:
        rank.resume()


@pytest.mark.usefixtures("resting")
def test_ray_lets_nobody_join_without_the_token(run: Run) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    # By itself Ray tries 20 times, once in a second.
    plain |= DEFAULTS | {OTHER_HOSTS: "0", "HOME": "/nonexistent", PORT_S: "3"}
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
    lines = []
    for process in run.family:
        with suppress(OSError):  # a worker that nobody needs ends at any time
            lines.append(Path(f"/proc/{process.pid}/cmdline").read_text())
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
    (raylet,) = named(run.family, "raylet")
    assert not nobody_can("cat", f"/proc/{raylet.pid}/environ")
