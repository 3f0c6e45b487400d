"""Takes what users registered to other processes: their models, and the code of their tasks.

What a user wrote is sent by value: another node need not have the file, nor find it by its name.
"""

import pickle
import sys
from collections.abc import Iterable
from types import ModuleType

import cloudpickle

from fl.federation import Job
from fl.methods.registry import METHODS
from fl.methods.registry import OURS as OUR_METHODS
from fl.models.registry import MODELS, OURS, register
from fl.sources import defined, home, is_users


def packed_models() -> bytes | None:
    """The user's models, for :func:`add_models` in another process; None if there are none."""
    own = [info for name, info in MODELS.items() if name not in OURS]
    by_value(_defined_in(getattr(info.build, n, None)) for info in own for n in ("make", "loss"))
    return bytes(cloudpickle.dumps(own)) if own else None


def add_models(packed: bytes | None) -> None:
    """Registers them in this process."""
    for info in pickle.loads(packed) if packed else ():
        register(info)


def send_methods_by_value() -> None:
    """Has what the modules of the user's methods define pickled by value: any function there may
    travel, as one that a client's model is built by to be scored."""
    own = [method for name, method in METHODS.items() if name not in OUR_METHODS]
    by_value(thing.__module__ for method in own for thing in (method.run, method.config))


def modules_of(job: Job) -> list[str]:
    """Names of the modules that define the job's task and training record."""
    training = job.client.training
    return [home(defined(thing)) for thing in (type(training), training.task, job.task)]


def by_value(names: Iterable[str]) -> None:
    """Has what these modules define pickled by value from now on, if they are the user's; and so on
    for the modules that they import: the file beside a plugin."""
    ray = sys.modules.get("ray")  # has a pickler of its own
    picklers = [cloudpickle] if ray is None else [cloudpickle, ray.cloudpickle]
    for name in users_modules(names) - {"__main__"}:  # which goes by value anyway
        for pickler in picklers:
            pickler.register_pickle_by_value(sys.modules[name])


def users_modules(names: Iterable[str]) -> set[str]:
    """Those of these modules that are the user's, and all such that they import."""
    left, seen, found = {*names}, set[str](), set[str]()
    while left:
        seen.add(name := left.pop())
        module = sys.modules.get(name)
        if module is not None and is_users(name):
            found.add(name)
            left |= {_defined_in(value) for value in [*vars(module).values()]} - seen
    return found


def _defined_in(value: object) -> str:
    """The module that it is, or that defines it."""
    found = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return found if isinstance(found, str) else ""
