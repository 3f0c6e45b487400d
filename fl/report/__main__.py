"""`python -m fl.report RUN [RUN...]`: writes each run's report anew, or compares the runs."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    text = "instead write one page that compares the runs, to this file"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    return parser


def regenerate(runs: Sequence[Path], output: Path | None) -> None:
    """Writes the runs' reports and prints where they are, or one page that compares the runs."""
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
    run_as_command(main)
