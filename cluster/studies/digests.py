"""The code that a table rests on, as a digest: an older table has another one."""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from cluster.run.command_line import for_method, load_preset
from cluster.studies.cell import Cell
from fl.json_values import JsonObject
from fl.methods.registry import get_method

ROOT = Path(__file__).parents[2]
METHODS = ROOT / "fl" / "methods"
OF_COMMANDS = (
    "arguments",
    "command",
    "disk_errors",
    "errors",
    "own_process",
    "tyro_errors",
)
"""Modules of ``fl`` for what a command takes and says."""
OF_TIME = ("memory", "training/sizes", "training/progress")
"""Modules of ``fl`` for when and with whom a client trains, in how much memory: its upload is the
same to the bit."""
WITHOUT = (
    METHODS,
    *(ROOT / "fl" / folder for folder in ("report", "privacy")),
    *(ROOT / "fl" / f"{name}.py" for name in (*OF_COMMANDS, *OF_TIME)),
)
"""What no accuracy depends on, and the methods, of which a cell has its own."""
RUNS = (
    ROOT / "fl",
    ROOT / "kernels",
    *(ROOT / "cluster" / "run" / f"{name}.py" for name in ("admit", "prepare")),
)
"""What all runs' accuracies rest on."""
LENGTH = 12


def digest_of_cell(cell: Cell) -> str:
    """Of what decides the accuracy of the cell's runs: ``RUNS``, the files of its method with what
    they import from beside them, its preset's settings for that method, and its own."""
    presets = [a.partition("=")[2] for a in cell.arguments if a.startswith("--preset=")]
    settings = [for_method(cell.registered, _preset(name)) for name in presets]
    shared = digest_of_files(RUNS)
    own = digest_of_files(method_files(cell.registered))
    return digest_of([shared, own, settings, cell.arguments])


def digest_of_cells(cells: Iterable[Cell]) -> str:
    """Of all that decides the cells' accuracies."""
    return digest_of([digest_of_cell(cell) for cell in cells])


@cache
def digest_of_files(paths: tuple[Path, ...]) -> str:
    """Of the code in these files, and in all below these folders; of ``fl/`` without ``WITHOUT``.

    Comments, descriptions and empty lines are not counted: no number depends on them.
    """
    files = sorted({file for path in paths for file in files_of(path)})
    named = [f"{file.relative_to(ROOT)}\n{code(file.read_text())}" for file in files]
    return digest_of(named)


def digest_of(value: object) -> str:
    """Of what JSON can hold."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


@cache
def method_files(name: str) -> tuple[Path, ...]:
    """The method's file, and those beside it that it imports, recursively."""
    method = get_method(name)
    parts = (getattr(part, "func", part) for part in (method.run, method.assign, method.config))
    waiting = {part.__module__.rpartition(".")[2] for part in parts}
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= set(_beside((METHODS / f"{name}.py").read_text())) - found
    return tuple(METHODS / f"{name}.py" for name in sorted(found))


def code(source: str) -> str:
    """The source without lines of comment, strings that stand by themselves, and empty lines."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = [""] * (last - node.lineno + 1)
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def files_of(path: Path) -> Iterator[Path]:
    """The file, or all code below the folder; below ``fl/`` without ``WITHOUT``."""
    if path.is_file():
        yield path
    for file in path.rglob("*.py"):
        if path != ROOT / "fl" or not any(file.is_relative_to(part) for part in WITHOUT):
            yield file


def _beside(source: str) -> Iterator[str]:
    """Names of the modules of ``fl.methods`` that the source imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "fl.methods":
                yield from (alias.name for alias in node.names)
            elif node.module.startswith("fl.methods."):
                yield node.module.split(".")[2]


@cache
def _preset(name: str) -> JsonObject:
    return load_preset(name)
