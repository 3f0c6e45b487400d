"""`python -m fl.report RUN [RUN...]`: writes each run's report anew, or compares the runs."""

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
    """Write report.html and its plots anew; as onefold compare, one page for several runs.

    Args:
        runs: Run directories.
        output: Instead write one page that compares the runs, to this file.
    """
    if not runs:
        raise UserError("name one run directory or more: onefold report RUN [RUN ...]")
    from fl.report.compare import write_comparison
    from fl.report.page import write_report  # late, as importing matplotlib is slow

    for run in runs if output is None else runs[:1]:
        try:
            page = write_report(run) if output is None else write_comparison(runs, output)
        except UserError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            # Content that no run writes is bad input.
            where = str(run) if output is None else f"one of {len(runs)} runs"
            kind = type(error).__name__
            raise UserError(f"{where} holds a damaged file: {kind}: {error}") from error
        print(escaped(str(page)))


if __name__ == "__main__":
    run_as_command(lambda: run_command(regenerate, "onefold report"))
