"""Workers are forked from a template in a process of the test's own, which has computed nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

from cluster.hardware import fork_worker
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
TEMPLATE = """
import json, os, subprocess, sys
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
        pass
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
        timeout=60,
    ).stdout


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
time.sleep(60)
"""
KILLED = """
import os, subprocess, sys, time
from cluster.hardware import fork_worker
from cluster.hardware.worker_template import worker_template

worker, asker, out = sys.argv[1:]
with worker_template() as address:
    environment = {**os.environ, fork_worker.TEMPLATE: str(address)}
    subprocess.run([sys.executable, asker, worker, out], env=environment, check=True)
    time.sleep(60)
"""


def test_a_worker_ends_with_a_launch_that_is_killed(tmp_path: Path) -> None:
    worker, out = tmp_path / "worker.py", tmp_path / "started"
    worker.write_text(SLEEPER)
    arguments = [sys.executable, "-c", KILLED, worker, fork_worker.__file__, out]
    with subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": str(ROOT)}) as launch:
        wait_until(lambda: out.exists() and out.read_text() != "")
        forked = psutil.Process(int(out.read_text()))
        launch.kill()
        forked.wait(timeout=5)
