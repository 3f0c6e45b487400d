"""Onefold: one-shot federated learning, run for real. The door for your own data, models, methods.

::

    result = onefold.run(data=(images, labels), model=MyNet, method="fedavg", rounds=3)
    result.accuracy, result.model, result.report
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.data.catalogue import register_dataset
    from fl.data.datasets import Dataset, Split
    from fl.errors import ClientFailed, UserError
    from fl.federation import TaskInput, TaskOutput
    from fl.methods.method import Assignment, Method
    from fl.methods.registry import register as register_method
    from fl.models.registry import register_model
    from fl.server import Outcome
    from onefold.methods import average, method, received, sent, starting_model
    from onefold.result import Result, load_model, load_result
    from onefold.running import run

try:
    __version__ = version("onefold")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+unknown"

__all__ = [
    "Assignment",
    "ClientFailed",
    "Dataset",
    "Method",
    "Outcome",
    "Result",
    "Split",
    "TaskInput",
    "TaskOutput",
    "UserError",
    "average",
    "load_model",
    "load_result",
    "method",
    "received",
    "register_dataset",
    "register_method",
    "register_model",
    "run",
    "sent",
    "starting_model",
]

_HOMES = {
    "Assignment": "fl.methods.method",
    "ClientFailed": "fl.errors",
    "Dataset": "fl.data.datasets",
    "Method": "fl.methods.method",
    "Outcome": "fl.server",
    "Result": "onefold.result",
    "Split": "fl.data.datasets",
    "TaskInput": "fl.federation",
    "TaskOutput": "fl.federation",
    "UserError": "fl.errors",
    "average": "onefold.methods",
    "load_model": "onefold.result",
    "load_result": "onefold.result",
    "method": "onefold.methods",
    "received": "onefold.methods",
    "register_dataset": "fl.data.catalogue",
    "register_method": "fl.methods.registry:register",
    "register_model": "fl.models.registry",
    "run": "onefold.running",
    "sent": "onefold.methods",
    "starting_model": "onefold.methods",
}
"""Where each name is defined. It is imported when it is first asked for: torch takes seconds, and
``onefold --help`` does not need it."""


def __getattr__(name: str) -> Any:
    if name == "methods":  # a module of which the tutorials take more than the names above
        import_module("onefold._packages")
        return import_module("onefold.methods")
    if name not in _HOMES:
        raise AttributeError(f"module 'onefold' has no attribute {name!r}")
    import_module("onefold._packages")  # first, see there
    module, _, there = _HOMES[name].partition(":")
    found = getattr(import_module(module), there or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
