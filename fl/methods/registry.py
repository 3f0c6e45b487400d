"""All methods by name, collected from the files beside this one."""

from importlib import import_module
from pkgutil import iter_modules

import fl.methods
from fl.errors import UserError, check_name, unknown
from fl.methods.method import Method


def _collect() -> dict[str, Method]:
    """All files' entries: each method's file ends with ``METHOD``, or several in ``METHODS``."""
    found: list[Method] = []
    for file in iter_modules(fl.methods.__path__, f"{fl.methods.__name__}."):
        if file.name != __name__:
            module = import_module(file.name)
            found += getattr(module, "METHODS", None) or [
                entry for entry in [getattr(module, "METHOD", None)] if entry
            ]
    return {method.name: method for method in found}


METHODS = _collect()
OURS = tuple(METHODS)
"""Names that come with Onefold, which nothing registered later may take."""


def register(method: Method) -> None:
    """Adds a method; one of the same name that was registered before is replaced.

    Raises:
        UserError: it is no method, or its name is one of Onefold's own, or no word.
    """
    if not isinstance(method, Method):
        raise UserError(f"expected a Method, got {type(method).__name__}")
    for field in ("scores_clients", "supports_dp"):
        if not callable(getattr(method, field)):
            raise UserError(f"method {method.name}: {field} must be a function of the settings")
    check_name("method", method.name, OURS)
    METHODS[method.name] = method


def get_method(name: str) -> Method:
    """The method of that name; the error for an unknown name lists all names."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
