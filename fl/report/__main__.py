"""`python -m fl.report RUN [RUN...]`: writes the report of each run directory anew."""

import sys
from pathlib import Path

import tyro

from fl.errors import UserError


def regenerate(runs: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Write report.html and its plots anew.

    Args:
        runs: Run directories.
    """
    from fl.report.page import write_report  # after the arguments are read: matplotlib is slow

    if not runs:
        raise UserError("name one run directory or more: python -m fl.report RUN [RUN ...]")
    for run in runs:
        print(write_report(run))


if __name__ == "__main__":
    try:
        tyro.cli(regenerate, prog="python -m fl.report")
    except UserError as error:
        print(f"onefold: {error}", file=sys.stderr)
        sys.exit(2)
