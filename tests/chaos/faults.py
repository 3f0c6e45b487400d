"""Faults: each is drawn from its seed, strikes a real run at some moment, and can be repeated."""

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.cluster.commands import environment
from tests.undrawn import undrawn

SMALL = (
    *("--num-clients=4", "--data.max-train=200", "--data.max-test=100"),
    *("--classifier.model=cnn", "--classifier.width=0.2", "--classifier.epochs=2"),
    *("--generator.width=0.1", "--generator.epochs=3", "--num-samples=60"),
    *("--fusion.epochs=6", "--distil-init.epochs=3", "--fusion-checkpoint=0"),
)
RUNTIMES = {"inprocess": ("--runtime=inprocess",), "ray": ("--fusion-ranks=2",)}


@dataclass
class Run:
    """A run in a folder of its own, as a process."""

    folder: Path
    runtime: str
    drawn: bool = False
    """Whether its report is drawn, which a full disk may stop."""
    output: str = ""
    """What its last process printed."""
    process: subprocess.Popen[bytes] | None = None
    arguments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.arguments = (*SMALL, *RUNTIMES[self.runtime], "--name=run")

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self.folder / "run"

    def start(self, *more: str) -> None:
        """Starts its process."""
        line = [sys.executable, "-m", "cluster.launch", *self.arguments, *more]
        line = line if self.drawn else undrawn(line)
        with (self.folder.parent / f"{self.folder.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*line, f"--output-dir={self.folder}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
            )

    def end(self) -> int:
        """Waits for its process's end, and returns the exit status."""
        assert self.process is not None
        status = self.process.wait()
        self.output = (self.folder.parent / f"{self.folder.name}.log").read_text(errors="replace")
        return status

    def whole(self, *more: str) -> int:
        """Runs it from start to end."""
        self.start(*more)
        return self.end()

    def struck(self, word: str) -> list[psutil.Process]:
        """Processes with the word, once the cluster is there: Ray itself ends a launch whose node
        dies while it starts, and has the last word then."""
        return self.children(word) if (self.run_dir / "ray-address").exists() else []

    def children(self, word: str) -> list[psutil.Process]:
        """Its process's descendants whose command line has the word."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
            return [child for child in below if word in _command_line(child)]
        return []


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


Fault = Callable[[Run, random.Random, float], str]
"""Strikes a run that it starts: takes the run, what it draws by, and how long an undisturbed one
lasts in seconds; says what it did."""


def kill_launch(run: Run, draw: random.Random, lasts: float) -> str:
    """The launch is killed, and all it has started with it."""
    run.start()
    after = draw.uniform(0.3, 1.0) * lasts
    assert run.process is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(after)
    run.process.kill()
    return f"launch killed after {after:.1f} s"


NONE_LEFT = "none was left"
"""The end of what a fault says that came too late."""


def _kill(word: str, within: float = 0.3) -> Fault:
    """``within``: how soon after its start such a process is killed, as a share of a whole run."""

    def strike(run: Run, draw: random.Random, lasts: float) -> str:
        run.start()
        assert run.process is not None
        while not run.struck(word) and run.process.poll() is None:
            time.sleep(0.05)
        time.sleep(draw.uniform(0, within) * lasts)
        with contextlib.suppress(psutil.NoSuchProcess):
            if found := run.children(word):
                draw.choice(found).kill()
                return f"{word} killed"
        return f"of {word} {NONE_LEFT}"

    return strike


def flip_bit(run: Run, draw: random.Random, lasts: float) -> str:
    """A run is killed, or has ended; then a bit of one of its files, or of the store's, flips."""
    done = kill_launch(run, draw, 1.5 * lasts)
    run.end()
    files = sorted(f for f in run.folder.rglob("*") if f.is_file() and f.stat().st_size)
    if not files:
        return f"{done}, before there was a file"
    file = draw.choice(files)
    content = bytearray(file.read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    file.write_bytes(content)  # in place, so that other names of the file see it too
    return f"{done}; a bit of {file.relative_to(run.folder)} flipped, byte {place}"


def fill_disk(run: Run, draw: random.Random, lasts: float) -> str:
    """The run's folder is on a disk of its own, which is too small until the run has ended."""
    kilobytes = draw.randrange(8, 1200, 4)
    mount(run.folder, kilobytes)
    run.start()
    run.end()
    mount(run.folder, 200_000, "remount,")
    return f"a disk of {kilobytes} kB"


def mount(folder: Path, kilobytes: int, how: str = "") -> bool:
    """Mounts a small disk in memory, or changes its size; False where that is not allowed."""
    options = f"{how}size={kilobytes}k"
    line = ["mount", "-t", "tmpfs", "-o", options, "onefold-chaos", str(folder)]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


FAULTS: dict[str, tuple[str, Fault]] = {
    "launch": ("inprocess", kill_launch),
    "bit": ("inprocess", flip_bit),
    "client": ("ray", _kill("ClientActor", within=0.03)),
    "rank": ("ray", _kill("RankActor", within=0.03)),
    "node": ("ray", _kill("raylet/raylet")),
    "launch on Ray": ("ray", kill_launch),
    "disk": ("inprocess", fill_disk),
}
"""By name: on which runtime, and what strikes."""
WEIGHTS = {"launch": 5, "bit": 9, "client": 2, "rank": 1, "node": 1, "launch on Ray": 1, "disk": 3}
"""How often each is drawn: those on Ray take three times as long."""
