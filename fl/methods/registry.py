"""Every method by its name on the command line, as the files beside this one have them."""

from importlib import import_module
from pkgutil import iter_modules

import fl.methods
from fl.errors import unknown
from fl.methods.method import Method


def _collect() -> dict[str, Method]:
    """A method's file ends with its entry ``METHOD``, or with several in ``METHODS``."""
    found: list[Method] = []
    for file in iter_modules(fl.methods.__path__, f"{fl.methods.__name__}."):
        if file.name != __name__:
            module = import_module(file.name)
            found += getattr(module, "METHODS", None) or [
                entry for entry in [getattr(module, "METHOD", None)] if entry
            ]
    return {method.name: method for method in found}


METHODS = _collect()


def get_method(name: str) -> Method:
    """The method of that name; the error lists the names there are."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
