"""``python -m tests.undrawn MODULE ...``: the command, whose runs' reports are not drawn.

Their pictures take two seconds of a processor, more than the tests' small runs. Matplotlib is not
even imported for them.
"""

import sys
from importlib import import_module
from pathlib import Path
from runpy import run_module
from types import ModuleType
from typing import Any

PAGE = "fl.report.page"
WRITE_REPORT = f"{PAGE}.write_report"
"""What a run draws its report by, for who patches it."""


def undrawn(line: list[str]) -> list[str]:
    """The command line of ``python -m MODULE ...`` with this module before the command's."""
    at = line.index("-m") + 1
    return [*line[:at], "tests.undrawn", *line[at:]]


def draw_nothing(run_dir: Path) -> Path:
    """Stands in for :func:`fl.report.page.write_report`."""
    return run_dir / "report.html"


def write_page(*given: Any, **values: Any) -> None:
    """:func:`fl.report.page.write_page`, for a page that is no run's report."""
    undrawn_page = sys.modules.pop(PAGE)
    real = import_module(PAGE)
    sys.modules[PAGE] = undrawn_page
    real.write_page(*given, **values)


def draw_nothing_here() -> None:
    """Lets none of this process's runs draw its report."""
    page = ModuleType(PAGE)
    page.write_report, page.write_page = draw_nothing, write_page  # type: ignore[attr-defined]
    sys.modules[PAGE] = page


if __name__ == "__main__":
    draw_nothing_here()
    del sys.argv[0]
    run_module(sys.argv[0], run_name="__main__", alter_sys=True)
