"""All that a GPU machine can show of Onefold in one call of some minutes, and nothing lost.

    python benchmarks/first_light.py --minutes 9 --out DIR

Takes the steps below in order of their value, each in a process of its own with a limit, cut to the
time that is left; with more minutes the limits grow. In DIR, as soon as it is known:
``steps.jsonl``, a line for each step with what became of it; ``rows.jsonl``, a line for each figure
and each test; ``log.txt``, all that the steps printed; and ``doctor.json``. A step that fails or
hangs says why, and the next one begins. Without a GPU it takes the steps that make sense on cores,
in less than two minutes. It needs Python's standard library alone; a step whose packages are
missing says which.

Exit status: 0; 1 if a step failed or timed out; 2 for bad usage; 130 after Ctrl-C or SIGTERM.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
USUAL_MINUTES, USUAL_MINUTES_ON_CORES = 9.0, 2.0
"""For which the steps' limits are meant; with more time they grow alike."""
LEAST_S = 8.0
"""A step begins only if so much time is left."""
END_S = 3.0
"""Seconds that a step has between the request to end and its end."""
PR_SET_PDEATHSIG = 1
WORDS = 1500
"""Characters of a failed step's last words that its line keeps."""


@dataclass(frozen=True)
class Step:
    """A program to run, and for how long at most."""

    name: str
    limit_s: float
    arguments: tuple[str, ...]
    """Of Python."""
    environment: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """That it needs, beside those that every run needs."""
    data: bool = False
    """Whether it needs MNIST."""


@dataclass(frozen=True)
class Place:
    """Where the steps write and find what they need."""

    out: Path
    data_root: Path | None
    scratch: Path

    @property
    def rows(self) -> str:
        """The file of all figures."""
        return str(self.out / "rows.jsonl")


def steps_on_a_card(place: Place) -> list[Step]:
    """What a GPU can show, the most telling first."""
    real = {"ONEFOLD_TEST_DEVICE": "cuda"}
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    cohorts = ("--rounds=1", f"--data-root={place.data_root}", f"--json={place.rows}")
    ways = ("--ways", "one by one, one process", "by hand, one process", "Onefold, one process")
    pool = ("--ways", "plain, forked processes", "Onefold, pool of actors")
    return [
        Step("ceilings", 60, program("machine", f"--json={place.rows}")),
        Step("kernels", 80, tests(place, "tests/kernels"), real),
        Step("methods", 120, tests(place, "tests/fl", "tests/cluster/run"), real),
        Step("main", 110, card(place, "main")),
        Step("doctor", 110, doctor(place)),
        Step("share", 50, tests(place, "tests/cluster/clients"), real, packages=("ray",)),
        Step("filter", 60, filters(place, "6000", "784", "10", "96000", "784", "47")),
        Step("fit", 60, fits(place, "--width=1", "--samples=6000", "--epochs=4")),
        Step("cohorts", 60, program("stacked", *ways, "--clients=2048", *cohorts), data=True),
        Step("together", 50, card(place, "together")),
        Step("profile", 40, card(place, "profile")),
        Step("ranks", 30, card(place, "ranks")),
        Step("fit, quarter", 40, fits(place, "--width=0.25", "--samples=6000", "--epochs=4")),
        Step(
            *("cohorts, cores", 60, program("stacked", *pool, "--clients=400", *cohorts)),
            *(hidden, ("ray",), True),
        ),
        Step(
            *("filter, large", 40),
            filters(place, "1000000", "3072", "100", "--leave-out", "released", "torch.cdist"),
        ),
        Step("paper", 540, card(place, "paper", f"--data-root={place.data_root}"), data=True),
    ]


def steps_on_cores(place: Place) -> list[Step]:
    """What shows on any machine that the steps work."""
    rounded = {"ONEFOLD_TEST_DEVICE": "rounded"}
    ways = ("--ways", "by hand, one process", "Onefold, one process", "--clients=4", "--rounds=1")
    where = (f"--data-root={place.data_root}", f"--json={place.rows}")
    return [
        Step("ceilings", 15, program("machine", f"--json={place.rows}")),
        Step("methods", 40, tests(place, "tests/fl/methods", "-k", "fedmho-sd"), rounded),
        Step("main", 25, card(place, "main")),
        Step("doctor", 35, doctor(place)),
        Step("filter", 20, filters(place, "600", "784", "10", "--leave-out", "released")),
        Step("fit", 20, fits(place, "--width=0.05", "--samples=128", "--epochs=1")),
        Step("together", 15, card(place, "together")),
        Step("profile", 15, card(place, "profile")),
        Step("ranks", 15, card(place, "ranks")),
        Step("cohorts", 20, program("stacked", *ways, *where), data=True),
    ]


def program(name: str, *arguments: str) -> tuple[str, ...]:
    """A program of this folder."""
    return (str(ROOT / "benchmarks" / f"{name}.py"), *arguments)


def card(place: Place, step: str, *arguments: str) -> tuple[str, ...]:
    """A step of on_a_card.py."""
    return program("on_a_card", step, f"--json={place.rows}", *arguments)


def filters(place: Place, *shapes: str) -> tuple[str, ...]:
    """The filter against its peers."""
    common = ("--seconds=0.4", "--ranks", "1", f"--json={place.rows}")
    return program("distance", *common, "--shapes", *shapes)


def fits(place: Place, *arguments: str) -> tuple[str, ...]:
    """The server's fit against a plain loop."""
    common = ("--ranks", "1", "--teachers", "5", f"--json={place.rows}")
    return program("fusion", *common, *arguments)


def doctor(place: Place) -> tuple[str, ...]:
    """The doctor, whose runs' folder is a scratch one."""
    where = (f"--output-dir={place.scratch / 'runs'}", f"--json={place.out / 'doctor.json'}")
    return ("-m", "cluster.doctor", *where)


def tests(place: Place, *what: str) -> tuple[str, ...]:
    """The tests that touch a GPU; on few cores in one process, without workers."""
    common = ("-q", "-p", "no:cacheprovider", "-m", "gpu", "--timeout=40", "--durations=0")
    workers = min(8, cores // 2) if (cores := os.cpu_count() or 1) >= 4 else 0
    return ("-m", "pytest", *common, f"-n{workers}", f"--rows={place.rows}", *what)


def main(arguments: list[str] | None = None) -> int:
    """Takes all steps; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog="Writes steps.jsonl, rows.jsonl, log.txt and doctor.json, line by line.",
    )
    parser.add_argument(
        "--minutes", type=float, default=USUAL_MINUTES, help="for all steps (default 9)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the files; it is made")
    parser.add_argument("--data-root", type=Path, help="folder of MNIST, in torchvision's layout")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="take only these steps")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupted)
    deadline = time.monotonic() + 60 * asked.minutes
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="first-light-") as scratch:
        place = Place(asked.out.resolve(), asked.data_root, Path(scratch))
        on_a_card = card_name() is not None
        steps = steps_on_a_card(place) if on_a_card else steps_on_cores(place)
        share = asked.minutes / (USUAL_MINUTES if on_a_card else USUAL_MINUTES_ON_CORES)
        steps = [replace(step, limit_s=step.limit_s * max(1.0, share)) for step in steps]
        if asked.only:
            names = [step.name for step in steps]
            if wrong := [name for name in asked.only if name not in names]:
                parser.error(f"no step is called {wrong[0]!r}; there are: {', '.join(names)}")
            steps = [step for step in steps if step.name in asked.only]
        try:
            return take(steps, place, deadline)
        except KeyboardInterrupt:
            return 130


def take(steps: list[Step], place: Place, deadline: float) -> int:
    """Takes the steps one after the other; returns the exit status."""
    write(place.out / "steps.jsonl", begun())
    bad = 0
    with (place.out / "log.txt").open("ab") as log:
        for step in steps:
            try:
                row = taken(step, place, deadline, log.fileno())
            except KeyboardInterrupt:
                write(place.out / "steps.jsonl", {"step": step.name, "status": "interrupted"})
                raise
            bad += row["status"] in ("failed", "timed out")
            write(place.out / "steps.jsonl", row)
            print(f"{row['step']:16} {row['status']:12} {row['seconds']:6.1f} s", flush=True)
    return 1 if bad else 0


def begun() -> dict[str, object]:
    """The first line: when, on what, and with which commit's code."""
    packed = ROOT / ".gpu" / "commit"  # by pack_for_gpu.sh, for a machine that has files alone
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    found = subprocess.run(git, capture_output=True, text=True) if shutil.which("git") else None
    commit = found.stdout.strip() if found else ""
    if not commit:
        commit = packed.read_text().strip() if packed.exists() else "unknown"
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"begun": date, "commit": commit, "card": card_name(), "cores": os.cpu_count()}


def taken(step: Step, place: Place, deadline: float, log: int) -> dict[str, object]:
    """What became of a step."""
    row: dict[str, object] = {"step": step.name, "seconds": 0.0, "limit_s": step.limit_s}
    missing = [name for name in step.packages if not installed(name)]
    if missing:
        return {**row, "status": "skipped", "why": f"not installed: {', '.join(missing)}"}
    if step.data and place.data_root is None:
        return {**row, "status": "skipped", "why": "needs MNIST: --data-root DIR"}
    limit = min(step.limit_s, deadline - time.monotonic() - END_S)
    if limit < LEAST_S:
        return {**row, "status": "no time left", "why": f"{max(0.0, limit):.0f} s were left"}
    os.write(log, f"\n=== {step.name}\n".encode())
    begin, size = time.monotonic(), os.fstat(log).st_size
    status = ran(step, place, limit, log)
    row |= {"seconds": round(time.monotonic() - begin, 1), "limit_s": round(limit, 1)}
    words = (place.out / "log.txt").read_bytes()[size:].decode(errors="replace")
    if status == 0:
        return {**row, "status": "passed"}
    said = "timed out" if status is None else "failed"
    return {**row, "status": said, "exit": status, "why": words[-WORDS:]}


def ran(step: Step, place: Place, limit: float, log: int) -> int | None:
    """The exit status of a step's process; None if it was ended at its limit."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        **{"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"},
        **step.environment,
    }
    process = subprocess.Popen(
        [sys.executable, *step.arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # its own processes end with it
        preexec_fn=end_with_us,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)


def end_with_us() -> None:
    """In a step's process: has Linux end it when this program is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process with all that it started, politely first: Ray has processes to end."""
    for number, patience in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def write(file: Path, row: dict[str, object]) -> None:
    """Adds a line, in one write that is on disk before the next step begins."""
    with file.open("ab", buffering=0) as lines:
        lines.write(json.dumps(row).encode() + b"\n")
        os.fsync(lines.fileno())


def card_name() -> str | None:
    """Name of the first GPU that NVIDIA's driver offers; None where there is none to be seen."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True)
    return found.stdout.splitlines()[0].strip() if found.returncode == 0 else None


def installed(package: str) -> bool:
    """Whether Python finds the package."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def interrupted(number: int, frame: FrameType | None) -> None:
    """Ends by the exception that also Ctrl-C raises: the step's process is then ended too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
