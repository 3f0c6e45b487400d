"""The version of the code that decides what a client uploads: a hash of its source."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from fl.federation import Task, Training

SHARED = ("fl.condensation", "fl.data.shard", "fl.models", "fl.seeding", "fl.training")
"""Modules and packages of ours that tasks are made of."""


def client_code(task: Task, training: Training) -> str:
    """A hash of all source on which a client's upload depends.

    That is ours, and the modules of the task, of the training record and of the record's own task,
    with what these import from beside themselves: the same package, or the same directory where
    they are in none.
    """
    roots = {task.__module__, training.task.__module__, type(training).__module__}
    digest = hashlib.sha256(_shared().encode())
    for name in sorted(_with_neighbours(roots)):
        digest.update(f"{name} ".encode())
        digest.update(_source(name).read_bytes())
    return digest.hexdigest()


@cache
def _shared() -> str:
    """Hash of our own source."""
    digest = hashlib.sha256()
    for name in SHARED:
        module = import_module(name)
        below = iter_modules(module.__path__, f"{name}.") if hasattr(module, "__path__") else ()
        for part in (name, *(m.name for m in below if not m.name.endswith("__main__"))):
            digest.update(_source(part).read_bytes())
    return digest.hexdigest()


def _with_neighbours(roots: set[str]) -> set[str]:
    """The modules that are not among the shared ones, and what they import from beside them."""
    found: set[str] = set()
    waiting = [name for name in roots if not name.startswith(SHARED)]
    while waiting:
        name = waiting.pop()
        found.add(name)
        # Of fl/ itself only the module is taken: what it imports there is shared or no client's.
        if not name.startswith("fl."):
            waiting += [n for n in _imported(name) if n not in found and _is_beside(n, name)]
    return found


def _imported(name: str) -> Iterator[str]:
    """Names that the module imports, wherever in it, as far as they are modules."""
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
    """The module's file; it is not imported for this: some bring libraries that take seconds."""
    origin = None
    if name in sys.modules:  # a script's __main__ is found by no other way
        origin = getattr(sys.modules[name], "__file__", None)
    elif spec := find_spec(name):
        origin = spec.origin
    return Path(str(origin))
