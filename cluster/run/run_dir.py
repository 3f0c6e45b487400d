"""The run directory: reserved for one run, and written so that it is readable at any moment."""

import json
import platform
import re
import shutil
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from cluster.run.command_line import FLATTENED, flatten, load_yaml
from cluster.run.options import Launch
from fl.config import RunConfig
from fl.data.by_path import is_path
from fl.data.catalogue import short_name
from fl.data.hugging_face import is_hugging_face
from fl.errors import UserError
from fl.json_values import JsonObject
from fl.whole_files import write_atomically

WHOLE_NUMBERS = re.compile(r"\[\n\s+-?\d+(?:,\n\s+-?\d+)*\n\s+\]")
"""Such a list as JSON with indents has it; within a string there is no newline."""
PACKAGES = ("torch", "torchvision", "triton", "numpy", "ray", "safetensors", "scikit-learn")


def claim(launch: Launch) -> Path:
    """Makes the run's directory; with ``--resume`` or ``--overwrite`` it takes an existing one.

    Without ``--name`` a free name is chosen, so only a name that was given can be taken already.

    Raises:
        UserError: the directory holds another run, or its configuration differs on ``--resume``.
    """
    path = locate(launch)
    settings = nested(launch.run)
    config_file = path / "config.yaml"
    if launch.overwrite and config_file.exists():
        shutil.rmtree(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose another --name or --output-dir")
    if config_file.exists():
        if not launch.resume:
            raise UserError(
                f"{path} holds another run: --resume continues it, --overwrite replaces it, "
                "--name starts one beside it"
            )
        _refuse_changes(config_file, settings)
    elif path.exists() and any(path.iterdir()):
        raise UserError(f"{path} holds files that are no run; choose another --name")
    path.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_dump({**settings, "versions": versions()}, sort_keys=False)
    write_atomically(config_file, content.encode())
    return path


def locate(launch: Launch) -> Path:
    """The run's directory: the given name, or one made of the configuration.

    A made name that is taken gets the next free number; ``--resume`` and ``--overwrite`` mean the
    last one that is taken.
    """
    if launch.name:
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


def versions() -> dict[str, str]:
    """Versions of Python, of Onefold and of the packages that a result depends on."""
    found = {"python": platform.python_version(), "onefold": _version("onefold")}
    return found | {name: _version(name) for name in PACKAGES}


def write_json(path: Path, value: object) -> None:
    """Writes JSON for people and programs, atomically; a list of whole numbers takes one line."""
    text = WHOLE_NUMBERS.sub(lambda found: _one_line(found[0]), json.dumps(value, indent=2))
    write_atomically(path, f"{text}\n".encode())


def _one_line(numbers: str) -> str:
    return f"[{' '.join(numbers[1:-1].split())}]"


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
        return "not installed"
