"""What is said before a run starts."""

import errno
import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from cluster.hardware.inventory import Inventory
from cluster.run.command_line import parse
from cluster.run.prepare import prepare
from cluster.run.steps import Steps, ended
from fl.errors import ServerFailed
from tests.cluster.commands import SMALL
from tests.cluster.run.made_up import measure_nothing
from tests.waiting import wait_until

MACHINE = Inventory(node="here", cpus=4, memory_bytes=2**34, gpus=(), source="machine")


def said(arguments: list[str]) -> list[str]:
    out = io.StringIO()
    with Steps(Console(file=out, width=40)) as say:
        prepare(parse([*SMALL, *arguments]), MACHINE, say=say)
    return out.getvalue().splitlines()


def test_each_step_of_the_preparation_names_itself_on_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure_nothing(monkeypatch)
    steps = ["reading the data: digits …", "cutting it among 4 clients …"]
    assert said(["--runtime=inprocess"]) == steps
    assert said([]) == [*steps, "measuring what clients need …"]


def test_on_a_terminal_a_step_takes_the_place_of_the_one_before() -> None:
    out = io.StringIO()
    with Steps(Console(file=out, width=40, force_terminal=True, color_system=None)) as say:
        for step in ("loading torch", "reading the data"):
            say(step)
            wait_until(lambda step=step: f"{step} …" in out.getvalue())  # another thread draws it
    assert "\r\x1b[2K" in out.getvalue()  # the line is taken away


def test_steps_tell_of_what_they_are() -> None:
    out = io.StringIO()
    with Steps(Console(file=out), "[1 of 2] fedavg") as say:
        say("reading the data: digits")
    assert out.getvalue() == "[1 of 2] fedavg: reading the data: digits …\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "question"),
    [
        ("cluster.launch", "--version"),
        ("cluster.launch", "--help"),
        ("cluster.suite", "--help"),
        ("cluster.study", "--help"),
        ("tune.sweep", "--help"),
        ("onefold", "--help"),
    ],
)
def test_the_first_step_is_said_before_torch_is_loaded(command: str, question: str) -> None:
    """In a process of its own, where an import of torch ends it."""
    start = "from onefold.command import main; sys.argv.insert(1, 'run')"
    if command != "onefold":
        start = f"from {command} import main"
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise SystemExit(7)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"{start}\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    line = [sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONUNBUFFERED": ""}
    ordered = [*line, "--seed=1"]  # without a word study and sweep say what they need
    done = subprocess.run(ordered, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout) == (7, "loading torch …\n")
    asked = subprocess.run([*line, question], capture_output=True, text=True)
    assert (asked.returncode, asked.stdout) == (7, "")  # an answer comes without a word before


@pytest.mark.parametrize("error", [ServerFailed("it died"), OSError(errno.ENOSPC, "full", "a/b")])
@pytest.mark.parametrize("goes_on", ["", "--resume goes on"])
def test_how_to_go_on_is_said_where_no_other_process_says_it(
    error: Exception, goes_on: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert ended(fail, goes_on) == 1
    said = capsys.readouterr().err
    assert said == said.strip() + "\n"
    assert said.count("\n") == 1 + (bool(goes_on) and isinstance(error, ServerFailed))
    assert said.endswith(f"{goes_on}\n")
    assert not said.endswith("then\n")
