"""`python -m fl.report RUN [RUN...]`: writes each run's report anew, or compares the runs."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from fl.command import run_command
from fl.errors import UserError


def regenerate(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
) -> None:
    """Write report.html and its plots anew.

    Args:
        runs: Run directories.
        output: Instead write one page that compares the runs, to this file.
    """
    from fl.report.compare import write_comparison
    from fl.report.page import write_report  # late, as importing matplotlib is slow

    if not runs:
        raise UserError("name one run directory or more: python -m fl.report RUN [RUN ...]")
    try:
        if output is not None:
            print(write_comparison(runs, output))
            return
        for run in runs:
            print(write_report(run))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        kind = type(error).__name__
        raise UserError(f"a run holds a file that no run wrote so: {kind}: {error}") from error


if __name__ == "__main__":
    sys.exit(run_command(regenerate, "python -m fl.report"))
