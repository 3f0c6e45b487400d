"""The version of the code that decides what a client uploads: a hash of its source."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fl import PACKAGES
from fl.federation import Task, Training
from fl.models.registry import MODELS
from fl.sources import code_of, defined, home, is_users, key_of

SHARED = ("fl.condensation", "fl.data.shard", "fl.models", "fl.seeding", "fl.training", "kernels")
"""Modules and packages of Onefold on which all tasks depend."""


def client_code(task: Task, training: Training) -> str:
    """A hash of all code on which a client's upload depends.

    That is Onefold's shared source, and of the task, of the training record and of the record's own
    task the code with all values that it refers to (:func:`fl.sources.key_of`), or the source where
    Onefold or an installed package has them; and the user's own model.
    """
    digest = hashlib.sha256(_shared().encode())
    things = (type(training), training.task, task)
    modules = {home(defined(thing)) for thing in things}
    for file in sorted({file for name in modules for file in _installed_files(name)}):
        digest.update(file.read_bytes())
    digest.update(key_of(things, f"uploads of {defined(task).__qualname__}").encode())
    if (info := MODELS.get(training.model)) and info.source:
        # As it is now: what its code refers to may have changed since it was registered.
        digest.update(code_of(info.build).digest.encode())
    return digest.hexdigest()


def _installed_files(module: str) -> list[Path]:
    """The file of a module of Onefold that is not shared, or all of an installed package."""
    if is_users(module) or module.startswith(SHARED):
        return []
    top = module.partition(".")[0]
    return _files(module if top in PACKAGES else top)


@cache
def _shared() -> str:
    """Hash of the source of the modules in ``SHARED``."""
    digest = hashlib.sha256()
    for source in shared_files():
        digest.update(source.read_bytes())
    return digest.hexdigest()


def shared_files() -> list[Path]:
    """The files of the modules in ``SHARED``, of packages with all that is below them."""
    found = (file for name in SHARED for file in _files(name))
    return [file for file in found if file.name != "__main__.py"]


def _files(name: str) -> list[Path]:
    """A module's file, or all below a package's folders; found without importing a module of ours,
    since some imports take seconds."""
    spec = find_spec(name)
    assert spec is not None
    folders = spec.submodule_search_locations
    if folders is None:
        return [Path(str(spec.origin))]
    return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
