"""Workers are forked from a template, or started where none answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.hardware import fork_worker
from cluster.hardware.worker_template import can_fork
from tests.cluster.living import await_end
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
TEMPLATE = """
import json, os, subprocess, sys, time
from pathlib import Path
from cluster.hardware import fork_worker
from cluster.hardware.worker_template import worker_template

worker, asker, out = sys.argv[1:]
with worker_template() as address:
    environment = {**os.environ, fork_worker.TEMPLATE: str(address), "OWN": "given"}
    for number in "12":
        own = json.dumps({"env_vars": {"ITS": number}, "py_executable": sys.executable})
        own = [f"--serialized-runtime-env-context={own}", f"--number={number}"]
        command = [sys.executable, asker, worker, *own, "--language=PYTHON"]
        subprocess.run(command, env=environment, stdout=open(out, "ab"), check=True)
    while len(Path(out).read_text().splitlines()) < 2:
        time.sleep(0.02)
print(address.exists(), os.getpid())
"""
WORKER = """
import json, os, random, sys
loaded = "torch" in sys.modules
told = [sys.argv[1:], os.environ["OWN"] + os.environ["ITS"], os.getppid(), random.random(), loaded]
os.write(1, (json.dumps(told) + "\\n").encode())
"""


def run(code: str, *arguments: object) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.process
def test_a_worker_is_forked_with_its_own_arguments_environment_and_streams(tmp_path: Path) -> None:
    worker, out = tmp_path / "worker.py", tmp_path / "out"
    worker.write_text(WORKER)
    before = "import torch\n"
    there, launch = run(before + TEMPLATE, worker, fork_worker.__file__, out).split()
    first, second = map(json.loads, out.read_text().splitlines())
    assert {first[0][0], second[0][0]} == {"--number=1", "--number=2"}
    assert {(*first[0], first[1]), (*second[0], second[1])} == {
        ("--number=1", "given1"),
        ("--number=2", "given2"),
    }
    assert first[2] == second[2] != int(launch)  # the template's children, and none of the launch's
    assert first[3] != second[3]
    assert first[4]
    assert second[4]
    assert there == "False"


SLEEPER = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
KILLED = """
import os, subprocess, sys, time
from cluster.hardware import fork_worker
from cluster.hardware.worker_template import worker_template

worker, asker, out = sys.argv[1:]
with worker_template() as address:
    environment = {**os.environ, fork_worker.TEMPLATE: str(address)}
    subprocess.run([sys.executable, asker, worker, out], env=environment, check=True)
    time.sleep(600)
"""


@pytest.mark.process
def test_a_worker_ends_with_a_launch_that_is_killed(tmp_path: Path) -> None:
    worker, out = tmp_path / "worker.py", tmp_path / "started"
    worker.write_text(SLEEPER)
    arguments = [sys.executable, "-c", KILLED, worker, fork_worker.__file__, out]
    with subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": str(ROOT)}) as launch:
        wait_until(lambda: out.exists() and out.read_text() != "")
        forked = psutil.Process(int(out.read_text()))
        launch.kill()
        await_end([forked])


@pytest.mark.process
def test_where_no_template_answers_rays_own_script_starts_the_worker(tmp_path: Path) -> None:
    (tmp_path / fork_worker.RAYS_OWN).write_text("import sys; print(sys.argv[1:])")
    arguments = ["-s", str(tmp_path / "worker.py"), "--language=PYTHON"]
    for environment in ({}, {fork_worker.TEMPLATE: str(tmp_path / "gone")}):
        done = subprocess.run(
            [sys.executable, fork_worker.__file__, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(arguments)


@pytest.mark.parametrize(
    "own",
    [
        {"command_prefix": ["nice"]},
        {"py_executable": "/another/python"},
        {"env_vars": {"A": "${HOME}/a"}},
        {"override_worker_entrypoint": "another.py"},
    ],
)
def test_a_worker_with_more_of_its_own_than_variables_is_not_forked(own: dict[str, Any]) -> None:
    argument = f"{fork_worker.OWN_ENVIRONMENT}{json.dumps(own)}"
    assert fork_worker._variables(["worker.py", argument]) is None


NODE = """
import os, subprocess, sys
worker = subprocess.Popen([sys.executable, *sys.argv[1:]])
print(worker.pid, flush=True)
worker.wait()
"""
STARTING = """
import os, sys, time
open(sys.argv[-1], "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.process
def test_a_worker_that_is_starting_ends_with_its_node(tmp_path: Path) -> None:
    """Else it makes the node's folder, removed by then, again, for other users to read."""
    (tmp_path / fork_worker.RAYS_OWN).write_text(STARTING)
    arguments = [fork_worker.__file__, str(tmp_path / "worker.py"), str(tmp_path / "started")]
    with subprocess.Popen([sys.executable, "-c", NODE, *arguments]) as node:
        wait_until((tmp_path / "started").exists)
        (worker,) = psutil.Process(node.pid).children()
        node.kill()
        await_end([worker])


def test_none_is_forked_from_a_process_with_cudas_driver(tmp_path: Path) -> None:
    assert can_fork()
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 08:01 1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1\n")
    assert can_fork(maps)
    with maps.open("a") as more:
        more.write("7f02-7f03 r-xp 0 08:01 2 /usr/lib/x86_64-linux-gnu/libcuda.so.580.1\n")
    assert not can_fork(maps)
