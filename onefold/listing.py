"""What ``onefold ls`` says: a line for each run, and for each sweep, study, grid and suite."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from cluster.run.yaml_files import read_yaml
from fl.errors import UserError, escaped
from fl.json_files import JsonObject, read_json
from fl.report.words import NONE, duration
from onefold.many_runs import Many

RUNS = ("name", "date", "method", "data", "alpha", "K", "seed", "accuracy", "time")
MANY = ("name", "date", "kind", "holds")
LONGEST = 40
"""Characters of a setting that are shown: a stranger's file may hold any."""
DAMAGE = (OSError, UserError, LookupError, TypeError, ValueError, OverflowError, yaml.YAMLError)
"""What reading a file raises that no run of ours wrote."""


def lines(runs: Mapping[str, Path], many: Iterable[Many]) -> list[str]:
    """The table of the runs, and below it that of what holds many."""
    of_runs = [(name, *_run(path)) for name, path in runs.items()]
    of_many = [(one.name, _date(one.written), one.kind, one.holds) for one in many]
    gap = [""] if of_runs and of_many else []
    return [*_table(RUNS, of_runs), *gap, *_table(MANY, of_many)]


def result_of(run: Path) -> JsonObject | None:
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
        result = result_of(path)
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
    shown = (found["method"], data, found["alpha"], clients, found["seed"])
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
