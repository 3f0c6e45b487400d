"""The version of the code that decides what a client uploads: a hash of its source."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fl.federation import Task, Training
from fl.models.registry import MODELS
from fl.sources import defined, key_of

SHARED = ("fl.condensation", "fl.data.shard", "fl.models", "fl.seeding", "fl.training")
"""Modules and packages of Onefold on which all tasks depend."""


def client_code(task: Task, training: Training) -> str:
    """A hash of all source on which a client's upload depends.

    That is Onefold's shared source, and the modules of the task, of the training record and of the
    record's own task, with what these import from the same package, or from the same directory
    where they are in none; the values that they refer to, which a command line or another cell of a
    notebook may set (:func:`fl.sources.key_of`); and the user's own model.
    """
    digest = hashlib.sha256(_shared().encode())
    things = (type(training), training.task, task)
    modules = (defined(thing).__module__ for thing in things)
    roots = {module for module in modules if _source(module).is_file()}
    for name in sorted(_with_neighbours(roots)):
        digest.update(f"{name} ".encode())
        digest.update(_source(name).read_bytes())
    digest.update(key_of(things, f"uploads of {defined(task).__qualname__}").encode())
    if training.model in MODELS:
        digest.update(MODELS[training.model].source.encode())
    return digest.hexdigest()


@cache
def _shared() -> str:
    """Hash of the source of the modules in ``SHARED``."""
    digest = hashlib.sha256()
    for source in shared_files():
        digest.update(source.read_bytes())
    return digest.hexdigest()


def shared_files() -> list[Path]:
    """The files of the modules in ``SHARED``, of packages with all that is below them."""
    found: list[Path] = []
    for name in SHARED:
        file = _source(name)
        found += sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    return [file for file in found if file.name != "__main__.py"]


def _with_neighbours(roots: set[str]) -> set[str]:
    """The roots that are not shared, and the modules beside them that they import, recursively."""
    found: set[str] = set()
    waiting = [name for name in roots if not name.startswith(SHARED)]
    while waiting:
        name = waiting.pop()
        found.add(name)
        # Imports of a module of fl/ are left out: they are shared, or no client runs them.
        if not name.startswith("fl."):
            waiting += [n for n in _imported(name) if n not in found and _is_beside(n, name)]
    return found


def _imported(name: str) -> Iterator[str]:
    """Names that the module imports, anywhere in it; some are no modules but defined in one."""
    package = name if _source(name).name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(_source(name).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join(parents) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_beside(name: str, other: str) -> bool:
    """Whether both are modules of one package, or files of one directory."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None or not (spec.origin or "").endswith(".py"):
        return False
    if "." in other:
        return name.partition(".")[0] == other.partition(".")[0]
    return Path(str(spec.origin)).parent == _source(other).parent


def _source(name: str) -> Path:
    """The module's file, found without importing it, since some imports take seconds."""
    origin = None
    if name in sys.modules:  # the only way to find a script's __main__
        origin = getattr(sys.modules[name], "__file__", None)
    elif spec := find_spec(name):
        origin = spec.origin
    return Path(str(origin))
