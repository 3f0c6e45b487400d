"""What holds many runs: sweeps and studies, which are folders, and tables of grids and suites."""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from cluster.run.run_dir import LOCK, delete, locked
from cluster.run.yaml_files import read_yaml
from fl.errors import UserError
from fl.json_files import read_json

STUDY = "study.json"
"""File of a study's figures, once all its runs are finished."""


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
            if many := _folder(path) if path.is_dir() else _table(path, runs):
                found.setdefault(many.name, many)
    return found


def _folder(path: Path) -> Many | None:
    if (path / "sweep.yaml").is_file() and (path / "trials").is_dir():
        return Many("sweep", path, _runs_in(path / "trials", "*"))
    runs = _runs_in(path, "k*-seed*")
    if (runs or (path / STUDY).is_file()) and not (path / "config.yaml").exists():
        return Many("study", path, runs)
    return None


def _runs_in(folder: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(sorted(file.parent for file in folder.glob(f"{pattern}/config.yaml")))


def _table(file: Path, runs: Mapping[str, Path]) -> Many | None:
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
            if one.kind == "sweep":
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

    own = {STUDY, ".store", *(f"{name}.png" for name in LABELS), *(run.name for run in one.runs)}
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
