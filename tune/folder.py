"""The sweep's directory: reserved for one sweep, and resumed only with the same settings."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from cluster.run.command_line import load_yaml
from cluster.run.options import Launch
from cluster.run.run_dir import changes, empty, holds_files, identity_of, locked, nested, versions
from fl.config import RunConfig
from fl.data.catalogue import short_name
from fl.errors import UserError
from fl.json_files import JsonObject, flatten
from fl.methods.method import Space
from fl.whole_files import read_sealed, refused_by_disk, write_atomically, write_sealed
from tune.options import SweepOptions

SECONDS = "trials-seconds"
"""File of how long the trials have taken, over all starts of the sweep."""


def named(options: SweepOptions, launch: Launch) -> Launch:
    """The launch with the sweep's name, and with paths that hold in every process."""
    run = launch.run
    made = f"sweep-{run.method}-{short_name(run.dataset)}-{Path(options.space).stem}"
    return replace(
        launch,
        name=launch.name or made,
        output_dir=launch.output_dir.absolute(),
        data_root=launch.data_root.absolute(),
    )


@contextmanager
def claimed_sweep(options: SweepOptions, launch: Launch, space: Space) -> Iterator[Path]:
    """Makes the sweep's directory and holds its lock until the end of the context.

    With ``--resume`` it takes the existing one.

    Raises:
        UserError: the name is taken or in use, there is nothing to resume, the settings differ, or
            it cannot be written.
    """
    assert launch.name is not None
    folder = launch.output_dir / launch.name
    settings = _settings(options, launch, space)
    with ExitStack() as held:
        with refused_by_disk():
            _refuse_taken(folder, launch, settings)
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(folder))
            _refuse_taken(folder, launch, settings)  # another process may have had it
            if launch.overwrite:
                empty(folder)
            (folder / "trials").mkdir(exist_ok=True)
            _write_yaml(folder / "sweep.yaml", settings)
            write_configuration(folder / "default.yaml", launch.run)
        yield folder


def _refuse_taken(folder: Path, launch: Launch, settings: JsonObject) -> None:
    file = folder / "sweep.yaml"
    if launch.resume:
        if not file.exists():
            raise UserError(f"{folder} holds no sweep to resume")
        _refuse_changes(file, settings)
    elif _is_used(folder) and not (launch.overwrite and file.exists() and not folder.is_symlink()):
        raise UserError(
            f"{folder} is taken: --resume continues a sweep, --overwrite replaces it, "
            "--name starts one beside it"
        )


def _is_used(folder: Path) -> bool:
    """Whether there is anything; a process that has just made the folder may still lose it."""
    is_folder = folder.is_dir() and not folder.is_symlink()
    return holds_files(folder) if is_folder else os.path.lexists(folder)


def write_configuration(path: Path, run: RunConfig[Any]) -> None:
    """Writes a file with which ``python -m cluster.launch --config`` repeats the run exactly."""
    _write_yaml(path, nested(run))


def _write_yaml(path: Path, content: JsonObject) -> None:
    text = yaml.safe_dump({**content, "versions": versions()}, sort_keys=False)
    write_atomically(path, text.encode())


def _settings(options: SweepOptions, launch: Launch, space: Space) -> JsonObject:
    described = {name: f"{d}" for name, d in space.items()}
    settings = {"sweep": asdict(options), "space": described, "run": nested(launch.run)}
    own = identity_of(launch.run)
    return {**settings, "code or data of": own} if own else settings


def _refuse_changes(file: Path, settings: JsonObject) -> None:
    changed = changes(flatten(load_yaml(file)), flatten(settings))
    changed.pop("sweep.space", None)  # maybe a path that has moved: the space itself is compared
    if changed:
        shown = ", ".join(changed.values())
        raise UserError(f"cannot resume {file.parent} as another sweep: {shown}")


def add_seconds(folder: Path, seconds: float) -> float:
    """Adds to the time that the sweep's trials took before it was stopped; returns all of it."""
    file = folder / SECONDS
    before = float(read_sealed(file) or 0.0)
    write_sealed(file, f"{before + seconds:.3f}".encode())
    return before + seconds
