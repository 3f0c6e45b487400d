"""Onefold: one-shot federated learning, run for real. The door for your own data, models, methods.

::

    result = onefold.run(data=(images, labels), model=MyNet, method="fedavg", rounds=3)
    result.accuracy, result.model, result.report
    onefold.grid({"method": ["fedavg", "moon"], "alpha": [0.1, 1]}, (images, labels), MyNet)
"""
# ruff: noqa: F401

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.data.catalogue import register_dataset
    from fl.data.datasets import Dataset, Split
    from fl.errors import ClientFailed, UserError
    from fl.events import ClientEnd, Event, RoundEnd, StopRounds
    from fl.federation import TaskInput, TaskOutput
    from fl.methods.method import Assignment, Method
    from fl.models.registry import register_model
    from fl.server import Outcome
    from onefold.methods import average, method, received, register_method, sent, starting_model
    from onefold.result import Result, load_model, load_result
    from onefold.running import run
    from onefold.tables import grid

try:
    __version__ = version("onefold")
except PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+unknown"

_NAMES = {
    "fl.data.catalogue": "register_dataset",
    "fl.data.datasets": "Dataset Split",
    "fl.errors": "ClientFailed UserError",
    "fl.events": "ClientEnd Event RoundEnd StopRounds",
    "fl.federation": "TaskInput TaskOutput",
    "fl.methods.method": "Assignment Method",
    "fl.models.registry": "register_model",
    "fl.server": "Outcome",
    "onefold.methods": "average method received register_method sent starting_model",
    "onefold.result": "Result load_model load_result",
    "onefold.running": "run",
    "onefold.tables": "grid",
}
"""By module, the names that it defines. A module is imported when one of its names is first asked
for: torch takes seconds, and ``onefold --help`` does not need it."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name != "methods":
        raise AttributeError(f"module 'onefold' has no attribute {name!r}")
    import_module("onefold._packages")  # first, see there
    if name == "methods":  # a module of which the tutorials take more than the names above
        return import_module("onefold.methods")
    globals()[name] = getattr(import_module(_HOMES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
