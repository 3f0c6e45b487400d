"""A command in a process of its own, with an environment that would stop them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fl.own_process import say_interrupted
from tests.fl.report.conftest import MakeRun, make_run

__all__ = ["make_run"]
HOSTILE = {
    "PYTHONIOENCODING": "ascii",
    "MPLBACKEND": "nonsense",
    "SOURCE_DATE_EPOCH": "abc",
    "COLUMNS": "-5",
    "OMP_NUM_THREADS": "abc",
    "TZ": "nonsense",
    "SLURM_JOB_ID": "7",
    "SLURM_CPUS_ON_NODE": "-4",
}


@pytest.mark.process
def test_no_variable_stops_a_report(make_run: MakeRun) -> None:
    path = make_run("ä run")
    command, environment = [sys.executable, "-m", "fl.report", str(path)], os.environ | HOSTILE
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (path / "report.html").stat().st_size > 10_000


BEGINNING = "import sys, time\nfrom fl.own_process import run_as_command\n"
WAITS = f"""{BEGINNING}
from cluster.hardware import private_folders
from fl import own_process
from pathlib import Path
private_folders.SHORT_TMP = Path(sys.argv[1])
own_process.LAST_RESORT_S = {{limit}}
own_process.AT_LAST.append(sys.stdin.read)  # it ends once the second signal is sent
def main():
    with private_folders.own_folder():
        try:
            print("ready", flush=True)
            time.sleep(600)
        finally:
            print("ending", flush=True)
            {{last}}
            print("ended", flush=True)
run_as_command(main)
"""
PRINTS = f"""{BEGINNING}
def main():
    for _ in range(9999):
        print("a line of a list")
    open(sys.argv[1], "w").write("result")
run_as_command(main, goes_on={{goes_on}})
"""


def test_each_command_that_is_interrupted_in_a_process_that_goes_on_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_interrupted()
    say_interrupted("interrupted; it can be continued")
    assert capsys.readouterr().err == "interrupted\ninterrupted; it can be continued\n"


INTERRUPTED = f"""{BEGINNING}
def interrupt(frame, event, value):
    if event == "return" and frame.f_code.co_filename.endswith("own_process.py"):
        sys.setprofile(None)
        raise KeyboardInterrupt  # as a signal does between two steps of Python's
def main():
    sys.setprofile(interrupt)
    try:
        sys.stdout.write("once\\n")
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("and on")
run_as_command(main)
"""


@pytest.mark.process
def test_a_line_that_is_interrupted_is_printed_once() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"once\nand on\n", b"")


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "last", "limit", "said"),
    [
        *((name, "sys.stdin.read()", 600, b"ended\n") for name in ("SIGINT", "SIGHUP", "SIGQUIT")),
        ("SIGTERM", "time.sleep(600)", 0.1, b""),  # it is stuck, and ended all the same
    ],
)
def test_a_signal_that_comes_twice_ends_in_one_line_and_leaves_no_folder(
    name: str, last: str, limit: float, said: bytes, tmp_path: Path
) -> None:
    number = signal.Signals[name]
    code = WAITS.format(last=last, limit=limit)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # the tests may run under nohup
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert len([*tmp_path.iterdir()]) == 1
    process.send_signal(number)
    assert process.stdout.readline() == b"ending\n"
    process.send_signal(number)
    printed, errors = process.communicate()
    assert (process.returncode, printed, errors) == (128 + number, said, b"interrupted\n")
    assert not [*tmp_path.iterdir()]


@pytest.mark.process
def test_nohup_is_obeyed(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('goes on')"
    command = f"{BEGINNING}\ndef main():\n    {code}\nrun_as_command(main)"
    done = subprocess.run(
        [sys.executable, "-c", command],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"goes on\n")


FULL = "onefold: cannot write to standard output: No space left on device"


@pytest.mark.process
@pytest.mark.parametrize(
    ("shell", "goes_on", "status", "said"),
    [
        ('"$@" | head -1 >/dev/null; exit ${PIPESTATUS[0]}', False, 141, ""),
        ('"$@" | head -1 >/dev/null; exit ${PIPESTATUS[0]}', True, 0, ""),
        ('"$@" >/dev/full', False, 1, FULL),
        ('"$@" >/dev/full', True, 0, FULL),
        ('"$@" >&-', False, 0, ""),
        ('"$@" >/dev/full 2>/dev/full', False, 1, ""),
    ],
)
def test_output_that_nobody_can_read_is_no_traceback_and_stops_no_run(
    shell: str, goes_on: bool, status: int, said: str, tmp_path: Path
) -> None:
    code, file = PRINTS.format(goes_on=goes_on), tmp_path / "result"
    command = ["bash", "-c", shell, "bash", sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (status, said)
    assert file.read_text() == "result"


@pytest.mark.process
def test_a_user_whom_the_system_does_not_know_has_no_home_and_no_cache() -> None:
    code = f"{BEGINNING}\nfrom fl.whole_files import *\nfrom fl.whole_files import *\n"
    code += "def main():\n    print(read_sealed(cache_dir() / 'x'))\n"
    code += "    write_cache(cache_dir() / 'x', 'text')\nrun_as_command(main)"
    unknown = ["unshare", "--map-user=54321", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME"]
    command = [*unknown, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stderr.startswith("unshare"):
        pytest.skip("this machine lets nobody be another user")
    assert (done.returncode, done.stdout) == (0, "None\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("onefold: warning: going on without a cache")
