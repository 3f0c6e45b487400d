"""``onefold ls``, ``export`` and ``rm``: what lies in an output directory."""

import csv
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro
import yaml

from cluster.run.yaml_files import read_yaml
from fl.command import run_command
from fl.errors import UserError, error_line, escaped, unknown
from fl.json_files import JsonObject, read_json
from fl.own_process import run_as_command
from fl.report.words import NONE, duration
from onefold.many_runs import Many, delete_all, many_in

PLAIN = (str, int, float)
"""Types of the figures that a table has."""
RUNS = ("name", "date", "method", "data", "alpha", "K", "seed", "accuracy", "time")
MANY = ("name", "date", "kind", "holds")
LONGEST = 40
"""Characters of a setting that are shown: a stranger's file may hold any."""
DAMAGE = (OSError, UserError, LookupError, TypeError, ValueError, OverflowError, yaml.YAMLError)
"""What reading a file raises that no run of ours wrote."""

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]


def ls(output_dir: Folder = Path("runs")) -> None:
    """List the runs, sweeps, studies, grids and suites there are.

    Args:
        output_dir: Where runs are kept.
    """
    runs = _runs_in(output_dir)
    shown = _lines(runs, many_in(output_dir, runs).values())
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
    own = [there[name] for name in runs if name in there]
    of_many = [many[name] for name in runs if name not in there]
    named = [*map(str, own), *(f"{one.place} ({one.kind}, {one.holds})" for one in of_many)]
    if not yes:
        raise UserError(f"would delete {', '.join(named)}; say --yes to do it")
    delete_all(own, of_many)
    for name in named:
        print(escaped(f"deleted {name}"))


COMMANDS: Mapping[str, Callable[..., None]] = {"ls": ls, "export": export, "rm": rm}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that the first word names; returns its status: 0, or 2 for bad input."""
    word, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if word not in COMMANDS:
        print(error_line(unknown("command", word, COMMANDS)), file=sys.stderr)
        return 2
    return run_command(COMMANDS[word], f"onefold {word}", rest)


def _runs_in(folder: Path) -> dict[str, Path]:
    """The runs by name."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --output-dir is where runs are kept")
    return {file.parent.name: file.parent for file in sorted(folder.glob("*/config.yaml"))}


def _refuse_unknown(names: Sequence[str], there: Mapping[str, object]) -> None:
    for name in names:
        if name not in there:
            raise UserError(f"no run {name!r}; onefold ls names those there are")


# The lines of ``onefold ls``: one for each run, and for each sweep, study, grid and suite.


def _lines(runs: Mapping[str, Path], many: Iterable[Many]) -> list[str]:
    """The table of the runs, and below it that of what holds many."""
    of_runs = [(name, *_run(path)) for name, path in runs.items()]
    of_many = [(one.name, _date(one.written), one.kind, one.holds) for one in many]
    gap = [""] if of_runs and of_many else []
    return [*_table(RUNS, of_runs), *gap, *_table(MANY, of_many)]


def _result_of(run: Path) -> JsonObject | None:
    """What the run found; None if it is not finished.

    Raises:
        UserError: its result.json is damaged.
    """
    try:
        return read_json(run / "result.json")
    except FileNotFoundError:
        return None


def _run(path: Path) -> Sequence[str]:
    """The run's line without its name; the date is that of its configuration: when it began."""
    date = _date((path / "config.yaml").lstat().st_mtime)
    try:
        result = _result_of(path)
        if result is None:
            return date, *_begun(path), NONE, "not finished"
        settings = _settings(result, result["clients"])
        return date, *settings, _score(result), duration(result["seconds"]["total"])
    except DAMAGE:
        return date, *[NONE] * 6, "its result.json is damaged"


def _begun(path: Path) -> list[str]:
    """The settings of a run that is not finished; its configuration may be no run's."""
    try:
        config = read_yaml(path / "config.yaml")
        return _settings(config, config["num_clients"])
    except DAMAGE:
        return [NONE] * 5


def _settings(found: JsonObject, clients: object) -> list[str]:
    data = Path(found["dataset"]).stem
    alpha = NONE if found["alpha"] is None else found["alpha"]
    shown = (found["method"], data, alpha, clients, found["seed"])
    return [f"{v:g}" if isinstance(v, float) else str(v)[:LONGEST] for v in shown]


def _score(result: JsonObject) -> str:
    """The accuracy, or the metric's name before its value."""
    metric, value = str(result.get("metric", "accuracy")), f"{result['accuracy']:.4f}"
    return value if metric == "accuracy" else f"{metric[:LONGEST]} {value}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as their cells; none without rows."""
    if not rows:
        return []
    cells = [[escaped(cell.replace("\n", " ")) for cell in row] for row in (names, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


# What ``onefold export`` writes.


def _export_figures(runs: dict[str, Path], file: Path) -> None:
    """Writes a line for each finished run: its name, and each figure that is a word or number."""
    results = {name: found for name, path in runs.items() if (found := _result_of(path))}
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


if __name__ == "__main__":
    run_as_command(main)
