"""The run directory: reserved for one run, and written so that it is readable at any moment."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from cluster.run.command_line import FLATTENED, flatten, load_yaml
from cluster.run.options import Launch
from cluster.run.run_folder import empty, is_run
from cluster.run.run_lock import FILE as LOCK
from cluster.run.run_lock import locked
from cluster.run.yaml_files import CALL
from fl.config import RunConfig
from fl.data.by_path import is_path
from fl.data.catalogue import short_name
from fl.data.hugging_face import is_hugging_face
from fl.disk_errors import printable, refused_by_disk
from fl.errors import UserError
from fl.json_values import JsonObject
from fl.whole_files import write_atomically

PACKAGES = ("torch", "torchvision", "triton", "numpy", "ray", "safetensors", "scikit-learn")


def claim(launch: Launch) -> Path:
    """Makes the run's directory for another process to run in, as :func:`claimed` does."""
    with claimed(launch) as path:
        return path


@contextmanager
def claimed(launch: Launch, call: str | None = None) -> Iterator[Path]:
    """Makes the run's directory, and holds its lock until the end of the context.

    ``call`` is the Python call of a run that a command cannot repeat; config.yaml records it.

    With ``--resume`` or ``--overwrite`` it takes an existing one. Without ``--name`` a free name is
    chosen, so only a name that was given can be taken already.

    Raises:
        UserError: the directory holds another run or is in use, its configuration differs on
            ``--resume``, or it cannot be written.
    """
    with ExitStack() as held:
        with refused_by_disk():
            path = _occupy(launch, held, call)
        yield path


def check_place(launch: Launch) -> None:
    """Refuses what :func:`claimed` would refuse as things are now; writes nothing.

    Raises:
        UserError: one line.
    """
    with refused_by_disk():
        path = locate(launch)
        if not str(launch.output_dir).isprintable():  # it stands in reports, which are UTF-8
            shown = printable(str(launch.output_dir))
            raise UserError(f"output_dir {shown} cannot be printed; choose another")
        if launch.output_dir.exists() and not launch.output_dir.is_dir():
            raise UserError(f"output_dir {launch.output_dir} is a file; choose another")
        store = launch.output_dir / ".store"
        if store.exists() and not store.is_dir():
            raise UserError(f"{store} must be a folder, the store of updates: move that file away")
        there = next(p for p in path.absolute().parents if p.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise UserError(f"cannot write to {there}; choose another --output-dir")
        _refuse_taken(path, launch)


def _occupy(launch: Launch, held: ExitStack, call: str | None) -> Path:
    """Makes or takes the directory, locks it, and writes the configuration."""
    path, made = _directory(launch)
    held.enter_context(locked(path))
    try:
        _refuse_taken(path, launch)
        if launch.overwrite and is_run(path):
            empty(path)
        recorded: JsonObject = {"versions": versions()} | ({CALL: call} if call else {})
        content = yaml.safe_dump(nested(launch.run) | recorded, sort_keys=False)
        write_atomically(path / "config.yaml", content.encode())
    except BaseException:
        if made:  # the name is free again
            shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def _directory(launch: Launch) -> tuple[Path, bool]:
    """The run's directory, and whether this call made it: of two that race for a made name, one
    gets the next."""
    while True:
        path = locate(launch)
        _refuse_taken(path, launch)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if launch.name is not None or launch.resume or launch.overwrite:
                return path, False
        else:
            return path, True


def _refuse_taken(path: Path, launch: Launch) -> None:
    """Refuses a directory that the run may not have, but for one that is locked."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        kind = "link" if path.is_symlink() else "file"
        raise UserError(f"{path} is a {kind}; choose another --name or --output-dir")
    if not path.exists():
        return
    config_file = path / "config.yaml"
    if not config_file.exists():
        if any(file.name != LOCK for file in path.iterdir()):
            raise UserError(f"{path} holds files that are no run; choose another --name")
    elif not is_run(path):
        raise UserError(f"{path} holds a config.yaml that is no run's; choose another --name")
    elif launch.resume:
        _refuse_changes(config_file, nested(launch.run))
    elif not launch.overwrite:
        raise UserError(
            f"{path} holds another run: --resume continues it, --overwrite replaces it, "
            "--name starts one beside it"
        )


def locate(launch: Launch) -> Path:
    """The run's directory: the given name, or one made of the configuration.

    A made name that is taken gets the next free number; ``--resume`` and ``--overwrite`` mean the
    last one that is taken.
    """
    if launch.name is not None:
        return launch.output_dir / launch.name
    run = launch.run
    what = f"{run.method}-{short_name(run.dataset)}"
    base = f"{what}-alpha{run.alpha:g}-k{run.num_clients}-seed{run.seed}"
    taken = [base, *(f"{base}-{n}" for n in range(2, 10_000))]
    free = next(i for i, name in enumerate(taken) if not (launch.output_dir / name).exists())
    if free and (launch.resume or launch.overwrite):
        free -= 1
    return launch.output_dir / taken[free]


def nested(config: RunConfig[Any]) -> JsonObject:
    """The configuration as it stands in YAML, with the flattened records at the top level.

    Paths of the user's own files are absolute: the run may be repeated from another folder.
    """
    plain = _plain(asdict(config))
    for name in FLATTENED:
        plain |= plain.pop(name, {})
    plain["plugin"] = [_absolute(p) if p.endswith(".py") else p for p in config.plugin]
    if is_path(config.dataset) and not is_hugging_face(config.dataset):
        plain["dataset"] = _absolute(config.dataset)
    if config.partition.file is not None:
        plain["partition"]["file"] = _absolute(config.partition.file)
    return plain


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


NOT_INSTALLED = "not installed"
"""In place of a package's version."""


def versions() -> dict[str, str]:
    """Versions of Python, of Onefold and of the packages that a result depends on."""
    found = {"python": platform.python_version(), "onefold": _version("onefold")}
    return found | {name: _version(name) for name in PACKAGES}


def _refuse_changes(config_file: Path, settings: JsonObject) -> None:
    before, now = flatten(load_yaml(config_file)), flatten(settings)
    changed = [n for n in sorted(before | now) if before.get(n) != now.get(n)]
    if changed:
        shown = ", ".join(f"{n}: {before.get(n)} -> {now.get(n)}" for n in changed)
        raise UserError(f"cannot resume {config_file.parent} with another configuration: {shown}")


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED
