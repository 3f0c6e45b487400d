"""Onefold: one-shot federated learning, run for real. The door for your own data, models, methods.

::

    result = onefold.run(data=(images, labels), model=MyNet, method="fedavg", rounds=3)
    result.accuracy, result.model, result.report
"""

from importlib.metadata import PackageNotFoundError, version

from onefold import _packages  # noqa: F401 - first, see there

# isort: split
from fl.data.catalogue import register_dataset
from fl.data.datasets import Dataset, Split
from fl.errors import ClientFailed, UserError
from fl.methods.method import Assignment, Method
from fl.methods.registry import register as register_method
from fl.models.own import register_model
from onefold.methods import average, method, received, sent, starting_model
from onefold.result import Result, load_model
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
    "Result",
    "Split",
    "UserError",
    "average",
    "load_model",
    "method",
    "received",
    "register_dataset",
    "register_method",
    "register_model",
    "run",
    "sent",
    "starting_model",
]
