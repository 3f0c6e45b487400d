"""All methods by name, collected from the files beside this one."""

import json
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torch import nn

import fl.methods
from fl.errors import UserError, check_name, unknown
from fl.fusion.server import Server
from fl.methods.method import Method
from fl.methods.uploads import untrained_classifier
from fl.server import Evaluation, Outcome
from fl.training.classifier import ClassifierConfig


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


def check_outcome(name: str, found: object, server: Server, options: Any) -> Outcome:
    """The outcome of a method of the user's, which may return its model alone: its start is then
    the untrained classifier that its clients train, if they do.

    Raises:
        UserError: it is neither, has no evaluation or figures that JSON does not hold, or its last
            evaluation is not that of its model.
    """
    if isinstance(found, nn.Module):
        start = tested = server.evaluate(found)
        if isinstance(classifier := getattr(options, "classifier", None), ClassifierConfig):
            start = server.evaluate(untrained_classifier(classifier, server))
        return Outcome(model=found, start=start, epochs=[tested])
    if not isinstance(found, Outcome):
        raise UserError(
            f"method {name} returned {type(found).__name__}; expected a model or an onefold.Outcome"
        )
    tests = [found.start, *found.epochs] if isinstance(found.epochs, list) else []
    if len(tests) < 2 or not all(isinstance(test, Evaluation) for test in tests):
        raise UserError(
            f"method {name}: start must be an evaluation (server.evaluate), and epochs a list of "
            "evaluations, the returned model's last"
        )
    try:
        json.dumps(found.figures)
    except (TypeError, ValueError) as error:
        raise UserError(f"method {name}: figures cannot be written as JSON: {error}") from None
    last = found.epochs[-1]
    if found.model is not None and not last.per_client:
        of_model = server.evaluate(found.model).accuracy
        if of_model != last.accuracy:
            raise UserError(
                f"method {name}: its last evaluation has {last.accuracy:.4f}, the returned "
                f"model {of_model:.4f}: evaluate this model last, or return no model"
            )
    return found
