"""What is kept of a run that was given objects from Python: its call, and the model's own code."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fl.data.datasets import Dataset

PLACE = ("name", "output_dir", "resume", "overwrite")
"""Settings of where a run lies, which another run of the same has otherwise."""
HEAD = "# The model as the run was given it. Read it, then: onefold export --plugin THIS_FILE ...\n"


def call_of(given: Mapping[str, Any], dataset: Dataset) -> str | None:
    """The Python call, with names for the objects; None where a command can say all of it."""
    data, objects = given["data"], [given["model"], given["method"]]
    own_data = not (data is None or isinstance(data, str | Path))
    if not own_data and all(thing is None or isinstance(thing, str) for thing in objects):
        return None
    shown = {n: v for n, v in given.items() if v is not None and n not in PLACE}
    words = [f"{n}={_shown(n, v)}" for n, v in shown.items() if "." not in n]
    if dotted := {n: v for n, v in shown.items() if "." in n}:
        words.append(f"**{dotted}")
    call = f"onefold.run({', '.join(words)})"
    if not own_data:
        return call
    sizes = f"{len(dataset.train.labels)} training and {len(dataset.test.labels)} test images"
    return f"{call}  # data, which is not kept: {sizes} {dataset.image_shape}"


def code_of(name: str, model: Callable[..., Any]) -> str | None:
    """A plugin that registers the model: its source below the imports of its module; None where
    there is no source that defines one thing by its name, as of a lambda."""
    try:
        source = textwrap.dedent(inspect.getsource(model))
        (defined,) = ast.parse(source).body
        imports = _imports(inspect.getmodule(model))
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    if getattr(defined, "name", None) != name:
        return None
    needed = "\n".join(dict.fromkeys([*imports, "import onefold"]))
    return f"{HEAD}{needed}\n\n\n{source}\n\nonefold.register_model({name!r}, {name})\n"


def _imports(module: ModuleType | None) -> list[str]:
    nodes = ast.parse(inspect.getsource(module)).body if module else []
    return [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def _shown(name: str, value: Any) -> str:
    if isinstance(value, str | Path):
        return repr(str(value))
    if name in ("data", "model", "method", "partition"):
        return str(getattr(value, "__name__", getattr(value, "name", name)))
    return repr(value)
