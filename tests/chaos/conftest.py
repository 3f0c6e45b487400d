"""How many faults, from which seed: ``make chaos FAULTS=100``; and what became of them.

Each kind comes once; the kinds of those beyond are drawn.
"""

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import WEIGHTS, Run, mount
from tests.cluster.commands import fingerprint


@dataclass(frozen=True)
class Undisturbed:
    """A run that no fault struck."""

    seconds: float
    bits: tuple[Any, ...]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        seed, count = (metafunc.config.getoption(name) for name in ("chaos_seed", "faults"))
        more = max(0, count - len(WEIGHTS))
        drawn = random.Random(seed).choices([*WEIGHTS], [*WEIGHTS.values()], k=more)
        faults = [*WEIGHTS, *drawn][:count]
        numbered = [(f"{seed}-{k}", fault) for k, fault in enumerate(faults)]
        metafunc.parametrize(("number", "fault"), numbered)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    """By the runtime; each is played when the first test asks for it."""

    @cache
    def play(runtime: str) -> Undisturbed:
        run = Run(tmp_path_factory.mktemp(f"undisturbed-{runtime}") / "runs", runtime)
        begin = time.monotonic()
        assert run.whole() == 0, run.output
        return Undisturbed(time.monotonic() - begin, fingerprint(run.run_dir))

    return play


@pytest.fixture
def folder(tmp_path: Path, fault: str) -> Iterator[Path]:
    """A folder of runs; a disk of its own for the fault that fills it."""
    made = tmp_path / "runs"
    made.mkdir()
    if fault == "disk":
        if not mount(made, 4):
            pytest.skip("a disk of its own cannot be mounted here: needs root")
        subprocess.run(["umount", str(made)], check=True)
    yield made
    if fault == "disk":
        subprocess.run(["umount", str(made)], check=False, capture_output=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How runs ended, by fault: read from reports, since other processes may have run the tests."""
    properties = (dict(r.user_properties) for r in terminalreporter.getreports("passed"))
    ended = Counter((p["fault"], p["ended"]) for p in properties if "ended" in p)
    if ended:
        terminalreporter.section("faults")
    for (fault, end), count in sorted(ended.items()):
        terminalreporter.write_line(f"{fault:14} {end:40} {count}")
