"""What every test can ask for."""

import gc
import importlib.metadata
import json
import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.registries import registries_restored
from tests.started import ALSO, BY_FIXTURE, started, watch
from tests.undrawn import WRITE_REPORT, draw_nothing

watch()

# Tiny models run fastest on one thread, and tests beside other work do not fight over cores.
torch.set_num_threads(1)

# How long an example takes is no fault: on a busy machine any may take more than 200 ms. (Who runs
# tests on a GPU machine may lack the package.)
with suppress(ModuleNotFoundError):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "no deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("no deadline")

# With each command line tyro reads the sources of its settings and builds their parser anew, nearly
# all of the time that it takes, and each run reads versions from the packages' files. Here all that
# is done once in a process.
importlib.metadata.version = cache(importlib.metadata.version)
with suppress(ImportError, AttributeError):
    from tyro._docstrings import _ClassTokenization as Sources
    from tyro._parsers import ParserSpecification as Parser

    Sources.make = staticmethod(cache(Sources.make))  # type: ignore[method-assign]
    build, parsers = Parser.from_callable_or_type, dict[Any, Parser]()

    def parser_of(form: Any, **how: Any) -> Parser:
        """That of a command's record; what is within one, and functions, are built as ever."""
        if how["parent_classes"] or isfunction(form):
            return build(form, **how)
        asked = form, frozenset(how["markers"]), how["default_instance"]
        if asked not in parsers:
            parsers[asked] = build(form, **how)
        return parsers[asked]

    Parser.from_callable_or_type = staticmethod(parser_of)  # type: ignore[assignment]

# No call of Ray's starts a cluster unasked, which nobody would end: its lines would come into the
# output of other tests. (Ray reads this when it is imported.)
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--data-root", type=Path, help="a folder with data sets, for the real ones")
    parser.addoption("--rows", type=Path, help="a file that gets a line of JSON for each test")
    parser.addoption("--faults", type=int, default=20, help="how many tests/chaos has")
    parser.addoption("--chaos-seed", type=int, default=0, help="what they are drawn by")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m MARKER`` files without it are not read: what they import may be missing here."""
    marker = config.getoption("-m")
    if marker not in ("slow", "gpu", "chaos", "slurm") or collection_path.suffix != ".py":
        return None
    return None if f"mark.{marker}" in collection_path.read_text() else True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds a test's line to the file of --rows, as soon as it has ended."""
    report = yield
    rows: Path | None = item.config.getoption("--rows")
    if rows and (report.when == "call" or report.outcome != "passed"):
        row = {"kind": "test", "name": report.nodeid, "outcome": report.outcome}
        row |= {"seconds": round(report.duration, 3)}
        if report.failed:
            row["why"] = report.longreprtext[-1500:]
        with open(rows, "ab", buffering=0) as lines:  # the test may have replaced Path.open
            lines.write(json.dumps(row).encode() + b"\n")
    return report


LONGEST = (
    *("tests/tune/", "tests/slurm/", "tests/kernels/test_interpreter.py"),
    *("tests/benchmarks/test_first_light.py", "tests/test_tutorials.py"),
    *("tests/fl/methods/test_golden.py", "tests/cluster/"),
)
"""Files that take minutes: with several processes they go first, in this order, so that none ends
alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        where = (k for k, start in enumerate(LONGEST) if item.nodeid.startswith(start))
        return next(where, len(LONGEST))

    items.sort(key=place)
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for mark in [BY_FIXTURE[name] for name in fixtures if name in BY_FIXTURE]:
            item.add_marker(mark)
        for mark in [ALSO[m.name] for m in item.iter_markers() if m.name in ALSO]:
            item.add_marker(mark)


def pytest_collection_finish() -> None:
    """Spares collections of garbage all that torch, Ray and the tests' own modules have made: where
    tests make many objects, as command lines do, these took a fifth of the time."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True)
def marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that starts Ray, a Slurm or a process carries that mark: see tests/started.py."""
    yield
    missing = started - {mark.name for mark in request.node.iter_markers()}
    started.clear()
    assert not missing, f"mark it {' and '.join(sorted(missing))}: it starts such a thing"


@pytest.fixture(scope="session", autouse=True)
def cache_home(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory of the tests' own, for the commands they run too.

    The processes of one session share it: what a step of a model needs, and which fonts there are,
    takes a process seconds to find.
    """
    own = tmp_path_factory.getbasetemp()
    home = (own.parent if hasattr(pytestconfig, "workerinput") else own) / "cache"
    home.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(home)
    return home


@pytest.fixture(scope="session")
def mnist_root(request: pytest.FixtureRequest) -> Path:
    """The data root that holds the real MNIST."""
    root: Path | None = request.config.getoption("--data-root")
    if root is None or not (root / "MNIST").is_dir():
        pytest.skip("real MNIST not found: pass --data-root=DIR")
    return root


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a script registers is gone after it; its reports are not drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(WRITE_REPORT, draw_nothing)
    with registries_restored():
        yield
