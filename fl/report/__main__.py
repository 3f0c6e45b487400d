"""`python -m fl.report RUN [RUN...]`: writes each run's report anew, or compares the runs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fl.command import Parser, exit_status
from fl.errors import UserError, escaped
from fl.own_process import run_as_command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, or 2 for bad input."""

    def command() -> None:
        options = _parser().parse_args(sys.argv[1:] if argv is None else argv)
        if not options.runs:
            raise UserError("name one run directory or more: onefold report RUN [RUN ...]")
        regenerate(options.runs, options.output)

    return exit_status(command)


def _parser() -> Parser:
    parser = Parser(prog="onefold report", description="Write report.html and its plots anew.")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run directories")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="instead write one page that compares the runs, to this file",
    )
    return parser


def regenerate(runs: Sequence[Path], output: Path | None) -> None:
    """Writes the runs' reports and prints where they are, or one page that compares the runs."""
    from fl.report.compare import write_comparison
    from fl.report.page import write_report  # late, as importing matplotlib is slow

    try:
        if output is not None:
            print(escaped(str(write_comparison(tuple(runs), output))))
            return
        for run in runs:
            print(escaped(str(write_report(run))))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        kind = type(error).__name__
        raise UserError(f"a run holds a file that no run wrote so: {kind}: {error}") from error


if __name__ == "__main__":
    run_as_command(main)
