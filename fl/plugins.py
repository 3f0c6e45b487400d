"""Loads the user's own module, which registers models, data sets or methods."""

import importlib
import importlib.util
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from torch import nn

from fl.errors import UserError, reason_of
from fl.methods.method import Method
from fl.methods.registry import register
from fl.models.registry import register_model

PREFIX = "onefold_plugin_"
"""Of the names under which files are loaded, so that none hides another module."""


def load_plugin(spec: str) -> ModuleType:
    """Imports a plugin, once.

    Args:
        spec: ``FILE.py``; or ``module``, found as Python finds it from the present folder; or
            ``module:name`` of a method, or of a module class or factory, which is registered under
            that name.

    Raises:
        UserError: it cannot be found, or fails; with the line where it does.
    """
    if spec.endswith(".py"):
        return _of_file(Path(spec).expanduser())
    name, _, wanted = spec.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with python -m, whatever command this is
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name.partition(".")[0] or error.name == name:
            raise UserError(
                f"plugin {spec}: there is no module {name}; a file ends in .py"
            ) from None
        raise _failed(spec, error) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it raises, an exit too
        raise _failed(spec, error) from None
    if getattr(module, "__file__", None) is None:
        raise UserError(f"plugin {spec} is no module with a file; a file ends in .py")
    if wanted:
        _register(spec, module, wanted)
    return module


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        kind = "it is no regular file" if path.exists() else "there is no such file"
        raise UserError(f"plugin {path}: {kind}")
    name = PREFIX + path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path.resolve()):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    beside = str(path.resolve().parent)
    sys.path.insert(0, beside)  # as Python does for a script
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _failed(str(path), error) from None
    finally:  # last, for what it imports later: none of ours may be found there first
        with suppress(ValueError):
            sys.path.remove(beside)
        sys.path.append(beside)
    return module


def _register(spec: str, module: ModuleType, name: str) -> None:
    found = getattr(module, name, None)
    if isinstance(found, Method):
        register(found)
    elif callable(found) and not isinstance(found, nn.Module):
        register_model(name, found)
    else:
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise UserError(f"plugin {spec}: {name} is {kind}; expected a Method or a model's class")


def _failed(spec: str, error: BaseException) -> UserError:
    if isinstance(error, UserError):
        return UserError(f"plugin {spec}: {error}")
    where = traceback.extract_tb(error.__traceback__)[-1]
    line, file = where.lineno, where.filename
    if isinstance(error, SyntaxError):  # of a file that was not run, so no frame is in it
        line, file = error.lineno, error.filename or spec
    return UserError(
        f"plugin {spec} fails in line {line} of {file}: {type(error).__name__}: "
        f"{reason_of(error)[:150]}"
    )
