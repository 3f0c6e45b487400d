"""What a run does not import: processes are many, and each would pay for it in seconds."""

import json
import subprocess
import sys
from pathlib import Path

from tests.cluster.commands import SMALL

COSTLY = ("torch._dynamo", "torch._inductor", "sympy", "torchvision", "sklearn", "pandas", "ray")

RUN = """
import json, sys
from cluster.launch import main
status = main(sys.argv[2:])
print(json.dumps([status, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
"""


def test_a_run_in_one_process_imports_nothing_that_takes_seconds(tmp_path: Path) -> None:
    arguments = [*SMALL, f"--output-dir={tmp_path}", "--name=run", "--runtime=inprocess"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(COSTLY), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
