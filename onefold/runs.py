"""``onefold ls``, ``export`` and ``rm``: what lies in an output directory."""

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from fl.command import exit_status, run_command
from fl.errors import UserError, escaped, unknown
from fl.own_process import run_as_command
from onefold.listing import lines, result_of
from onefold.many_runs import Many, delete_all, many_in

PLAIN = (str, int, float)
"""Types of the figures that a table has."""
Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]


def ls(output_dir: Folder = Path("runs")) -> None:
    """List the runs, sweeps, studies, grids and suites there are.

    Args:
        output_dir: Where runs are kept.
    """
    runs = _runs_in(output_dir)
    shown = lines(runs, many_in(output_dir, runs).values())
    print("\n".join(shown) or f"no runs in {escaped(str(output_dir))}")


def export(
    runs: Names = (),
    csv: File = None,
    onnx: File = None,
    torch_export: File = None,
    plugin: Annotated[str | None, tyro.conf.arg(metavar="PLUGIN")] = None,
    output_dir: Folder = Path("runs"),
) -> None:
    """Write figures of runs as a table, or one run's model.

    Args:
        runs: Names; for figures by default all.
        csv: File for the figures.
        onnx: File for the model.
        torch_export: File for the model.
        plugin: Your code that registers the model.
        output_dir: Where runs are kept.
    """
    there = _runs_in(output_dir)
    _refuse_unknown(runs, there)
    files = [file for file in (csv, onnx, torch_export) if file is not None]
    if len(files) != 1:
        raise UserError("say what to export: one of --csv, --onnx and --torch-export")
    chosen = {name: there[name] for name in runs}
    if csv is not None:
        _export_figures(chosen or there, csv)
    else:
        _export_model([*chosen.values()], files[0], plugin, onnx=onnx is not None)


def rm(
    runs: Names = (),
    yes: tyro.conf.FlagCreatePairsOff[bool] = False,
    output_dir: Folder = Path("runs"),
) -> None:
    """Delete runs, sweeps, studies, grids or suites; clients' uploads stay in the store.

    Args:
        runs: Names of what is to be deleted.
        yes: Without this it only names them.
        output_dir: Where runs are kept.
    """
    there = _runs_in(output_dir)
    many = many_in(output_dir, there)
    _refuse_unknown(runs, {**many, **there})
    if not runs:
        raise UserError("name what to delete; onefold ls names what there is")
    of_many = [many[name] for name in runs if name not in there]
    _remove([there[name] for name in runs if name in there], of_many, sure=yes)


COMMANDS: Mapping[str, Callable[..., None]] = {"ls": ls, "export": export, "rm": rm}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that the first word names; returns its status: 0, or 2 for bad input."""
    word, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if word not in COMMANDS:
        return exit_status(lambda: _refuse(word))
    return run_command(COMMANDS[word], f"onefold {word}", rest)


def _refuse(word: str) -> None:
    raise unknown("command", word, COMMANDS)


def _runs_in(folder: Path) -> dict[str, Path]:
    """The runs by name."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --output-dir is where runs are kept")
    return {file.parent.name: file.parent for file in sorted(folder.glob("*/config.yaml"))}


def _refuse_unknown(names: Sequence[str], there: Mapping[str, object]) -> None:
    for name in names:
        if name not in there:
            raise UserError(f"no run {name!r}; onefold ls names those there are")


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


def _export_model(chosen: Sequence[Path], file: Path, plugin: str | None, *, onnx: bool) -> None:
    if len(chosen) != 1:
        raise UserError("name the run whose model is to be exported")
    from fl.plugins import load_plugin  # late: torch takes seconds
    from onefold.result import export_model

    if plugin is not None:
        load_plugin(plugin)
    export_model(chosen[0], file, onnx=onnx)
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
