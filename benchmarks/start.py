"""How long a launch takes until something happens: old commit beside new.

    python benchmarks/start.py --against COMMIT --json FILE
    python benchmarks/start.py --against COMMIT --json FILE -- --dataset mnist --data-root DIR

Seconds from the command to its first line, to the first client at work, to the first upload and to
its end, of ``python -m cluster.launch`` with what follows ``--``; of ``import onefold``, and from
there until ``onefold.run`` in process has its first client at work. Every launch has a store of its
own; how steps were measured before is known, unless ``--cold``. With ``--against`` the commit's
files are checked out into a folder that is gone afterwards, and each round runs both in turn.
Beside the clock's seconds stand those of processors, all processes of a launch together: where
others work on the machine these are what compares.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import tyro
from machine import Rows, describe_machine, watched
from rich.console import Console
from rich.table import Table

from fl.events import ClientEnd, ClientStart, parse_events

ROOT = Path(__file__).resolve().parents[1]
MOMENTS = ("first line", "first client at work", "first upload", "end")
IN_PYTHON = ("import onefold", "onefold.run")
KINDS = ("", ", cpu")
IN_PROCESS = """
import sys, time
began, cpu = time.perf_counter(), time.process_time()
def tell():
    global began, cpu
    print(time.perf_counter() - began, time.process_time() - cpu)
    began, cpu = time.perf_counter(), time.process_time()
import onefold
from fl.events import ClientStart
run = onefold.run  # imports torch
tell()
def heard(event):
    if isinstance(event, ClientStart) and not said:
        said.append(tell())
said = []
run(
    output_dir=sys.argv[1], runtime="inprocess", progress=False, callbacks=[heard], num_clients=2,
    classifier={"epochs": 1}, generator={"epochs": 1}, num_samples=20, fusion={"epochs": 1},
)
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times a launch's start."""

    against: str | None = None
    """A commit to run beside this one."""
    rounds: int = 3
    """Launches of each; medians count."""
    cold: bool = False
    """Whether no launch knows the measurements of the one before it."""
    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""
    arguments: tyro.conf.Positional[tuple[str, ...]] = field(default=())
    """Of the launch."""


def main(options: Options) -> int:
    """Prints the table; writes the JSON if asked to."""
    console, runs = Console(width=110), dict[str, list[dict[str, float]]]()
    told, machine = Rows("start", options.json), describe_machine("cpu")
    told.add(kind="machine", **machine, arguments=options.arguments)
    with tempfile.TemporaryDirectory() as scratch, checked_out(options.against) as old:
        trees = {"new": ROOT} if old is None else {f"old, {options.against}": old, "new": ROOT}
        if not options.cold:
            for name, tree in trees.items():
                console.print(f"{name}: one launch that does not count …", style="dim")
                launch(tree, Path(scratch), f"{name} cache", options.arguments)
        for number in range(options.rounds):
            for name, tree in trees.items():
                console.print(f"round {number + 1} of {options.rounds}: {name} …", style="dim")
                cache = f"{name} {number if options.cold else 'cache'}"
                timed = launch(tree, Path(scratch), cache, options.arguments)
                runs.setdefault(name, []).append(timed | in_process(tree, Path(scratch)))
                told.add(kind="launch", tree=name, **runs[name][-1])
    rows = {name: medians(timed) for name, timed in runs.items()}
    console.print(table(rows, machine))
    return 0


@contextmanager
def checked_out(commit: str | None) -> Iterator[Path | None]:
    """The commit's files, in a temporary worktree."""
    if commit is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", folder, commit], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


def launch(tree: Path, scratch: Path, cache: str, arguments: tuple[str, ...]) -> dict[str, float]:
    """Seconds, by the clock and of processors, to each of the moments of one launch."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        where = [f"--output-dir={folder}", "--name=run"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.launch", *where, *arguments],
            env=environment(tree, scratch / cache),
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        clock, run_began = dict[str, float](), None
        spent, seconds = [(0.0, 0.0)], dict[int, float]()

        def see(found: list[psutil.Process]) -> None:
            """Notes what the process and its descendants have computed by now."""
            for each in found:
                with suppress(psutil.Error):
                    seconds[each.pid] = sum(each.cpu_times()[:2])
            spent.append((time.perf_counter(), sum(seconds.values())))

        with watched(process.pid, 0.1, see):
            for line in process.stdout or ():
                clock.setdefault(MOMENTS[0], time.perf_counter() - began)
                if run_began is None and (stamp := re.match(r"\[ *([\d.]+) s\]", line)):
                    run_began = time.perf_counter() - began - float(stamp[1])
            if process.wait() or run_began is None:
                raise SystemExit(f"the launch of {tree} failed")
            clock[MOMENTS[3]] = time.perf_counter() - began
        with Path(folder, "run", "metrics.jsonl").open() as lines:
            told = list(parse_events(lines))
        ended = [event for event in told if isinstance(event, ClientEnd)]
        started = [event.seconds for event in told if isinstance(event, ClientStart)]
        at_work = min(event.seconds - event.seconds_training for event in ended)
        clock[MOMENTS[1]] = run_began + max(at_work, min(started))
        clock[MOMENTS[2]] = run_began + min(event.seconds for event in ended)
    return clock | {f"{name}, cpu": spent_until(spent, began + clock[name]) for name in MOMENTS}


def environment(tree: Path, cache: Path) -> dict[str, str]:
    """Has Python find the tree's packages, and ours the measurements in that cache."""
    return {**os.environ, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(cache)}


def spent_until(moments: list[tuple[float, float]], when: float) -> float:
    """The last of the seconds that were seen before that moment."""
    return [seconds for moment, seconds in moments if moment <= when][-1]


def in_process(tree: Path, scratch: Path) -> dict[str, float]:
    """Seconds of ``import onefold`` with all that it imports, and of ``onefold.run`` until its
    first client starts."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        done = subprocess.run(
            [sys.executable, "-c", IN_PROCESS, folder],
            env=environment(tree, scratch / "in process"),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    figures = map(float, done.stdout.split()[: 2 * len(IN_PYTHON)])
    return dict(
        zip((f"{name}{kind}" for name in IN_PYTHON for kind in KINDS), figures, strict=True)
    )


def medians(timed: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure, over the launches."""
    return {name: statistics.median(each[name] for each in timed) for name in timed[0]}


def ratio(old: float, new: float) -> str:
    """Of new to old; none where nothing was seen of the old."""
    return f"{new / old:.2f}" if old else "-"


def table(rows: dict[str, dict[str, float]], machine: dict[str, object]) -> Table:
    """A row for each moment; with two commits the ratio of new to old."""
    shown = Table("until", *(f"{name}, s" for name in rows), *(f"{name}, cpu s" for name in rows))
    if len(rows) > 1:
        for kind in ("s", "cpu s"):
            shown.add_column(f"new / old, {kind}")
    shown.title = ", ".join(f"{name} {value}" for name, value in machine.items())
    for moment in (*MOMENTS, *IN_PYTHON):
        both = [[row[moment + kind] for row in rows.values()] for kind in KINDS]
        ratios = [ratio(*of_both) for of_both in both] if len(rows) > 1 else []
        shown.add_row(moment, *(f"{s:.2f}" for kind in both for s in kind), *ratios)
    return shown


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
