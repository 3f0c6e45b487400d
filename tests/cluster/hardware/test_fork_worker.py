"""Asks the template for a worker, or has Ray's own script start it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.hardware import fork_worker
from tests.waiting import wait_until


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
SLEEPER = """
import os, sys, time
open(sys.argv[-1], "w").write(str(os.getpid()))
time.sleep(60)
"""


def test_a_worker_that_is_starting_ends_with_its_node(tmp_path: Path) -> None:
    """Else it makes the node's folder, removed by then, again, for other users to read."""
    (tmp_path / fork_worker.RAYS_OWN).write_text(SLEEPER)
    arguments = [fork_worker.__file__, str(tmp_path / "worker.py"), str(tmp_path / "started")]
    with subprocess.Popen([sys.executable, "-c", NODE, *arguments]) as node:
        wait_until((tmp_path / "started").exists)
        (worker,) = psutil.Process(node.pid).children()
        node.kill()
        worker.wait(timeout=5)
