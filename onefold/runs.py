"""``onefold ls``, ``export`` and ``rm``: what lies in an output directory."""

import csv
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
import yaml

from cluster.run.command_line import read_yaml
from cluster.run.run_dir import LOCK, delete, locked
from fl.command import run_command
from fl.errors import UserError, error_line, escaped, unknown
from fl.json_files import JsonObject, read_json
from fl.own_process import run_as_command
from fl.report.words import NONE, duration

PLAIN = (str, int, float)
"""Types of the figures that a table has."""
RUNS = ("name", "date", "method", "data", "alpha", "K", "seed", "accuracy", "time")
MANY = ("name", "date", "kind", "holds")
LONGEST = 40
"""Characters of a setting that are shown: a stranger's file may hold any."""
DAMAGE = (OSError, UserError, LookupError, TypeError, ValueError, OverflowError, yaml.YAMLError)
"""What reading a file raises that no run of ours wrote."""

STUDY = "study.json"
"""File of a study's figures, once all its runs are finished."""

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
        raise UserError(f"{folder} is a file; set --output-dir to the folder of runs")
    return {file.parent.name: file.parent for file in sorted(folder.glob("*/config.yaml"))}


def _refuse_unknown(names: Sequence[str], there: Mapping[str, object]) -> None:
    for name in names:
        if name not in there:
            raise UserError(f"no run {name!r}; onefold ls names those there are")


@dataclass(frozen=True)
class Many:
    """A sweep, study, grid or suite that lies in an output directory."""

    kind: Literal["sweep", "study", "grid", "suite"]
    place: Path
    """Its folder; of a grid or suite the table's JSON file."""
    runs: tuple[Path, ...]
    """The folders of its runs; of a sweep those of its trials."""

    @property
    def name(self) -> str:
        """The folder's name, or the table's."""
        return self.place.name if self.place.is_dir() else self.place.stem

    @property
    def holds(self) -> str:
        """How many runs or trials it has."""
        unit, count = "trial" if self.kind == "sweep" else "run", len(self.runs)
        return f"{count} {unit}{'' if count == 1 else 's'}"

    @property
    def written(self) -> float:
        """When sweep.yaml, study.json or the table was; of an unfinished study its folder."""
        files = (self.place, self.place / "sweep.yaml", self.place / STUDY)
        return [file.stat().st_mtime for file in files if file.exists()][-1]


def many_in(folder: Path, runs: Mapping[str, Path]) -> dict[str, Many]:
    """What holds many runs in the folder, by name. ``runs``: those that lie in it, by name.

    A grid or suite is known by its table, which is written when its runs are finished.
    """
    found: dict[str, Many] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(OSError):  # one that may not be looked into
            if many := _folder(path) if path.is_dir() else _of_table(path, runs):
                found.setdefault(many.name, many)
    return found


def _folder(path: Path) -> Many | None:
    if (path / "sweep.yaml").is_file() and (path / "trials").is_dir():
        return Many("sweep", path, _runs_below(path / "trials", "*"))
    runs = _runs_below(path, "k*-seed*")
    if (runs or (path / STUDY).is_file()) and not (path / "config.yaml").exists():
        return Many("study", path, runs)
    return None


def _runs_below(folder: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(sorted(file.parent for file in folder.glob(f"{pattern}/config.yaml")))


def _of_table(file: Path, runs: Mapping[str, Path]) -> Many | None:
    """The grid or suite whose table the file is."""
    if file.suffix != ".json":
        return None
    try:
        table = read_json(file)
        scale = table["scale"]
        if file.stem != (f"{table['table']}-{scale}" if scale else table["table"]):
            return None
        names = [
            f"{file.stem}-{cell['row']}-{cell['method']}-seed{seed}"
            for cell in table["cells"]
            for seed in table["seeds"]
        ]
    except (UserError, LookupError, TypeError):  # no file of ours
        return None
    if not scale:  # as a grid names its runs
        names = [re.sub(r"[^\w.+-]", "_", name) for name in names]
    own = tuple(runs[name] for name in names if name in runs)
    return Many("suite" if scale else "grid", file, own)


def delete_all(runs: Iterable[Path], many: Iterable[Many]) -> None:
    """Deletes these runs, and what holds many runs with all its runs.

    Raises:
        UserError: one is not ours, holds files that are not ours, or a process is at work in it;
            then nothing is deleted.
    """
    many = tuple(many)
    tables = {one: _files_of_table(one) for one in many if one.kind in ("grid", "suite")}
    folders = [one for one in many if one.kind in ("sweep", "study")]
    with ExitStack() as held:
        for one in folders:
            _refuse_foreign(one)
            held.enter_context(locked(one.place))
            _refuse_trials_at_work(one)
        of_studies = [run for one in folders if one.kind == "study" for run in one.runs]
        of_tables = [run for one in tables for run in one.runs]
        delete(dict.fromkeys([*runs, *of_tables, *of_studies]))
        for one in folders:
            shutil.rmtree(one.place)
    for files in tables.values():
        for file in files:
            file.unlink(missing_ok=True)


def _refuse_trials_at_work(sweep: Many) -> None:
    """A trial's process may outlive the sweep's; none begins while this one has the sweep."""
    for lock in sweep.place.glob(f"*/*/{LOCK}"):
        with locked(lock.parent):
            pass


def _refuse_foreign(one: Many) -> None:
    wrong = (f"holds {name}, which is no {one.kind}'s" for name in _foreign(one))
    if what := "is a link" if one.place.is_symlink() else next(wrong, None):
        raise UserError(f"{one.place} {what}: delete it by hand")


def _foreign(one: Many) -> Iterator[str]:
    """Names of what no sweep or study has written."""
    if one.kind == "sweep":
        try:
            found = read_yaml(one.place / "sweep.yaml")
        except (OSError, ValueError, yaml.YAMLError):
            found = None
        if not (isinstance(found, dict) and {"sweep", "space", "run"} <= found.keys()):
            yield "sweep.yaml"
        return
    from cluster.studies.study_report import LABELS  # late: matplotlib is slow

    own = {STUDY, LOCK, ".store", *(f"{n}.png" for n in LABELS), *(run.name for run in one.runs)}
    yield from sorted(path.name for path in one.place.iterdir() if path.name not in own)


def _files_of_table(one: Many) -> list[Path]:
    """The table as text and JSON, and its pictures."""
    endings: tuple[str, ...] = ()
    if one.kind == "suite":
        from cluster.studies.exhibits import EXHIBITS  # late: matplotlib is slow

        exhibit = EXHIBITS.get(one.name.rpartition("-")[0])
        endings = tuple(f"-{ending}" for ending in exhibit.also) if exhibit else ()
    pictures = [one.place.with_name(f"{one.name}{ending}.png") for ending in ("", *endings)]
    return [one.place, one.place.with_suffix(".md"), *pictures]


def _lines(runs: Mapping[str, Path], many: Iterable[Many]) -> list[str]:
    """The lines of ``onefold ls``: the table of the runs, and below it that of what holds many."""
    of_runs = [(name, *_run(path)) for name, path in runs.items()]
    of_many = [(one.name, _date(one.written), one.kind, one.holds) for one in many]
    gap = [""] if of_runs and of_many else []
    return [*_table(RUNS, of_runs), *gap, *_table(MANY, of_many)]


def _result_of(run: Path) -> JsonObject | None:
    """What the run found; None if it is not finished. Raises `UserError` if its file is damaged."""
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
    data = Path(found["dataset"]).name.removesuffix(".npz").removesuffix(".json")
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
