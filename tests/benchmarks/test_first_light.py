"""First light: what is known is on disk, whatever becomes of the steps or of the driver."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import first_light
import gpu_page
import pytest
from first_light import Place, Step

from tests.cluster.living import alive
from tests.missing import environment
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


LONG_S, BRIEF_S = 500.0, 0.75
"""Limits that no step here reaches, and that one does."""
SLEEPS = f"time.sleep({LONG_S})"
HANGS = re.compile(r"^I hang (\d+)$", re.MULTILINE)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def script(name: str, limit_s: float, text: str, **how: Any) -> Step:
    return Step(name, limit_s, ("-c", text), **how)


@pytest.mark.process
def test_one_step_dies_another_hangs_and_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_light, "LEAST_S", 0.1)
    monkeypatch.setattr(first_light, "END_S", 0.5)
    wait, log = subprocess.Popen.wait, tmp_path / "log.txt"

    def patient(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if timeout == BRIEF_S:  # the limit counts once the step says that it hangs
            wait_until(lambda: HANGS.search(log.read_text()))
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", patient)
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    steps = [
        script("dies", LONG_S, "import os; print('before', flush=True); os.kill(os.getpid(), 9)"),
        script("hangs", BRIEF_S, f"{deaf}print('I hang', os.getpid(), flush=True); {SLEEPS}"),
        script("fails", LONG_S, "raise SystemExit('no kernel image')"),
        script("lacks", LONG_S, "", packages=("no_such_package",)),
        script("needs data", LONG_S, "", data=True),
        script(
            "told",
            LONG_S,
            "import os; assert os.environ['WHERE'] == 'here'",
            environment={"WHERE": "here"},
        ),
    ]
    place = Place(tmp_path, None, tmp_path)
    assert first_light.take(steps, place, time.monotonic() + 10 * LONG_S) == 1
    (hanging,) = HANGS.findall(log.read_text())
    wait_until(lambda: not alive(int(hanging)))
    first, *rows = lines(tmp_path / "steps.jsonl")
    assert {"begun", "commit", "card", "cores"} == first.keys()
    assert [row["step"] for row in rows] == [step.name for step in steps]
    status = ["failed", "timed out", "failed", "skipped", "skipped", "passed"]
    assert [row["status"] for row in rows] == status
    assert (rows[0]["exit"], rows[1]["exit"]) == (-9, None)
    said = ["before", "I hang", "no kernel image", "no_such_package", "--data-root"]
    assert all(word in row["why"] for word, row in zip(said, rows, strict=False))


@pytest.mark.process
def test_a_step_is_cut_to_the_time_that_is_left_and_none_begins_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_light, "LEAST_S", 0.5)
    monkeypatch.setattr(first_light, "END_S", 0.25)
    ran, now = first_light.ran, 7.0
    monkeypatch.setattr(first_light.time, "monotonic", lambda: now)

    def timed(step: Step, place: Place, limit: float, log: int) -> int | None:
        nonlocal now
        status, now = ran(step, place, limit, log), now + limit
        return status

    monkeypatch.setattr(first_light, "ran", timed)
    steps = [script(name, LONG_S, f"import time; {SLEEPS}") for name in ("cut", "late")]
    first_light.take(steps, Place(tmp_path, None, tmp_path), now + 1.75)
    _, cut, late = lines(tmp_path / "steps.jsonl")
    assert (cut["status"], late["status"]) == ("timed out", "no time left")
    assert cut["limit_s"] == cut["seconds"] == 1.5


TELLING = """
import sys
sys.path.insert(0, {benchmarks!r})
from pathlib import Path
import first_light
from first_light import Place, Step
out = Path({out!r})
tells = '''
import itertools, os, time
from pathlib import Path
from machine import Rows
Path({out!r}, "pid").write_text(str(os.getpid()))
for number in itertools.count():
    Rows("test", Path({out!r}, "rows.jsonl")).add(number=number, words="x" * 3000)
'''
steps = [Step("tells", 500, ("-c", tells), {{"PYTHONPATH": {path!r}}})]
first_light.LEAST_S = 0.1
first_light.take(steps, Place(out, None, out), 1e12)
"""


@pytest.mark.process
def test_a_killed_driver_leaves_whole_lines_and_no_process(tmp_path: Path) -> None:
    told = {"benchmarks": str(BENCHMARKS), "out": str(tmp_path), "path": f"{BENCHMARKS}:{ROOT}"}
    driver = subprocess.Popen([sys.executable, "-c", TELLING.format(**told)])
    rows = tmp_path / "rows.jsonl"
    wait_until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 2)
    time.sleep(random.uniform(0, 0.3))
    step = int((tmp_path / "pid").read_text())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not alive(step))
    assert lines(tmp_path / "steps.jsonl")
    # Linux may cut the write of the line that the kill met: who reads leaves that one out.
    numbers = [row["number"] for row in gpu_page.lines(rows)]
    assert numbers[:2] == [0, 1]


TOGETHER = f"""
import runpy, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import first_light
ran = first_light.ran

def here(step, place, limit, log):
    program = step.arguments[0]
    if program == "-m":
        return ran(step, place, limit, log)
    sys.argv = [*step.arguments]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    return 0

first_light.ran = here
sys.exit(first_light.main(sys.argv[1:]))
"""
"""First light whose programs run in its own process: together they import torch once."""


@pytest.mark.process
@pytest.mark.slow
def test_the_steps_for_cores_pass_where_ray_is_missing(tmp_path: Path) -> None:
    """Those that no other test takes, with time for a machine that other tests keep busy."""
    taken = ["methods", "filter", "fit", "together", "profile"]
    command = [sys.executable, "-c", TOGETHER, "--minutes=30", "--only", *taken]
    command += [f"--out={tmp_path / 'out'}"]
    site = tmp_path / "site"
    site.mkdir()
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment(site) | hidden, capture_output=True, text=True)
    steps = lines(tmp_path / "out" / "steps.jsonl")[1:]
    assert done.returncode == 0, f"{steps} {done.stderr}"
    assert [(step["step"], step["status"]) for step in steps] == [(n, "passed") for n in taken]
    made = gpu_page.Run(tmp_path / "out")
    told = {subject for subject, _, read in gpu_page.SUBJECTS if read(made)}
    assert told == {
        *("Trainings, methods, a run, by tolerance", "Distance filter", "Fifty steps each"),
        "VGG-9 clients side by side",
        *("The server's fit, 5 teachers", "Saving a fit's state"),
    }


HANGING = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import first_light
from first_light import Step
hangs = "import os, time; print('I hang', os.getpid(), flush=True); {SLEEPS}"
first_light.steps_on_cores = lambda place: [Step("hangs", {LONG_S}, ("-c", hangs))]
sys.exit(first_light.main(sys.argv[1:]))
"""


@pytest.mark.process
def test_an_interrupted_driver_says_so_and_ends_its_step(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGING, f"--out={tmp_path}"]
    driver = subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    log = tmp_path / "log.txt"
    wait_until(lambda: log.exists() and HANGS.search(log.read_text()))
    driver.terminate()
    assert driver.wait() == 130
    assert lines(tmp_path / "steps.jsonl")[1:] == [{"step": "hangs", "status": "interrupted"}]
    (hanging,) = HANGS.findall(log.read_text())
    wait_until(lambda: not alive(int(hanging)))


def test_a_step_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        first_light.main([f"--out={tmp_path}", "--only", "warm"])
    assert refused.value.code == 2
    assert "no step is called 'warm'; there are: ceilings, methods" in capsys.readouterr().err


def test_a_card_that_is_hidden_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho NVIDIA H100\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert first_light.card_name() == "NVIDIA H100"
    names = [step.name for step in first_light.steps_on_a_card(Place(tmp_path, None, tmp_path))]
    assert len(names) == len({*names})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert first_light.card_name() is None
