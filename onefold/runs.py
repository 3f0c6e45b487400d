"""``onefold ls``, ``export`` and ``rm``: what lies in an output directory."""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from fl.command import Parser, exit_status
from fl.errors import UserError, escaped
from fl.own_process import run_as_command
from onefold.listing import lines, result_of
from onefold.many_runs import Many, delete_all, many_in

PLAIN = (str, int, float)
"""Types of the figures that a table has."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, or 2 for bad input."""
    given = sys.argv[1:] if argv is None else argv
    return exit_status(lambda: _answer(_parser().parse_args(given)))


def _answer(options: argparse.Namespace) -> None:
    folder = options.output_dir
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --output-dir is where runs are kept")
    runs = {file.parent.name: file.parent for file in sorted(folder.glob("*/config.yaml"))}
    many = {} if options.command == "export" else many_in(folder, runs)
    for name in options.runs:
        if name not in runs and name not in many:
            raise UserError(f"no run {name!r}; onefold ls names those there are")
    chosen = {name: runs[name] for name in options.runs if name in runs}
    if options.command == "ls":
        print("\n".join(lines(runs, many.values())) or f"no runs in {escaped(str(folder))}")
    elif options.command == "rm":
        of_many = {name: many[name] for name in options.runs if name not in runs}
        _remove([*chosen.values()], [*of_many.values()], sure=options.yes)
    elif options.csv is not None:
        _export_figures(chosen or runs, options.csv)
    else:
        _export_model([*chosen.values()], options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="onefold", description=__doc__)
    where = {"type": Path, "metavar": "DIR", "help": "where runs are kept; default runs"}
    parser.add_argument("--output-dir", default=Path("runs"), **where)  # type: ignore[arg-type]
    anywhere = Parser(add_help=False)  # before the word or after it
    anywhere.add_argument("--output-dir", default=argparse.SUPPRESS, **where)  # type: ignore[arg-type]
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser(
        "ls", parents=[anywhere], help="the runs, sweeps, studies, grids and suites there are"
    )
    listing.set_defaults(runs=())
    exporting = commands.add_parser(
        "export", parents=[anywhere], help="figures of runs as a table, or a run's model"
    )
    what = exporting.add_mutually_exclusive_group(required=True)
    what.add_argument("--csv", type=Path, metavar="FILE", help="figures of runs")
    what.add_argument("--onnx", type=Path, metavar="FILE", help="one run's model")
    what.add_argument("--torch-export", type=Path, metavar="FILE", help="one run's model")
    exporting.add_argument("--plugin", metavar="PLUGIN", help="your code that registers the model")
    exporting.add_argument("runs", nargs="*", metavar="NAME", help="runs; figures: default all")
    removing = commands.add_parser(
        "rm", parents=[anywhere], help="delete runs, sweeps, studies, grids, suites"
    )
    removing.add_argument("runs", nargs="+", metavar="NAME")
    removing.add_argument("--yes", action="store_true", help="without this it only names them")
    return parser


def _export_figures(runs: dict[str, Path], file: Path) -> None:
    """Writes a line for each finished run: its name, and each figure that is a word or number."""
    results = {name: found for name, path in runs.items() if (found := result_of(path))}
    if not results:
        raise UserError("no finished run to export")
    rows = [
        {_cell(k): _cell(v) for k, v in {"run": name, **found}.items() if isinstance(v, PLAIN)}
        for name, found in results.items()
    ]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
    print(f"{file}: {len(rows)} run{'' if len(rows) == 1 else 's'}, {len(columns)} columns")


def _cell(value: object) -> object:
    """The value, with a quote before words that a spreadsheet would compute."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def _export_model(chosen: Sequence[Path], options: argparse.Namespace) -> None:
    if len(chosen) != 1:
        raise UserError("name the run whose model is to be exported")
    from fl.plugins import load_plugin  # late: torch takes seconds
    from onefold.result import export_model

    if options.plugin is not None:
        load_plugin(options.plugin)
    file = options.onnx or options.torch_export
    export_model(chosen[0], file, onnx=options.onnx is not None)
    print(f"{file}: the model of {chosen[0].name}")


def _remove(runs: Sequence[Path], many: Sequence[Many], *, sure: bool) -> None:
    """Deletes them and all their runs; what clients uploaded stays in the store for others."""
    named = [*map(str, runs), *(f"{one.place} ({one.kind}, {one.holds})" for one in many)]
    if not sure:
        raise UserError(f"would delete {', '.join(named)}; say --yes to do it")
    delete_all(runs, many)
    for name in named:
        print(escaped(f"deleted {name}"))


if __name__ == "__main__":
    run_as_command(main)
