"""`python -m fl.report RUN [RUN...]`: writes each run's report anew, or compares the runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from fl.command import run_command
from fl.errors import UserError, escaped
from fl.own_process import run_as_command


def regenerate(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = (),
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = None,
) -> None:
    """Write report.html and its plots anew.

    Args:
        runs: Run directories.
        output: Instead write one page that compares the runs, to this file.
    """
    if not runs:
        raise UserError("name one run directory or more: onefold report RUN [RUN ...]")
    from fl.report.compare import write_comparison
    from fl.report.page import write_report  # late, as importing matplotlib is slow

    if output is not None:
        with _damage_named(f"one of {len(runs)} runs"):
            print(escaped(str(write_comparison(runs, output))))
        return
    for run in runs:
        with _damage_named(str(run)):
            print(escaped(str(write_report(run))))


@contextmanager
def _damage_named(run: str) -> Iterator[None]:
    """Inside, content of a run's files that no run writes is bad input."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        kind = type(error).__name__
        raise UserError(f"{run} holds a damaged file: {kind}: {error}") from error


if __name__ == "__main__":
    run_as_command(lambda: run_command(regenerate, "onefold report"))
