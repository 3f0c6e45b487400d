"""The part of the module ``pynvml`` that Onefold calls, over GPUs that a test describes.

:mod:`tests.cluster.fake_driver` puts it in the place of the real one, in this process or in others;
so it needs Python's standard library alone.
"""

# ruff: noqa: N801, N802  (the names are those of the real one)

import json
import os
from types import SimpleNamespace
from typing import Any

DRIVER: dict[str, Any] = json.loads(os.environ.get("FAKE_DRIVER", "{}"))
"""``cards``: each with uuid, name, memory, and in MIG mode ``mig``, its devices; the name of an
error in place of a value, card or device is raised. ``fails``: the error of every call.
``hangs``: called first, and returns when the driver is to answer."""
NVML_DEVICE_MIG_ENABLE = 1
calls: list[str] = []


class NVMLError(Exception):
    def __str__(self) -> str:
        return type(self).__name__.removeprefix("NVMLError_")


class NVMLError_LibraryNotFound(NVMLError): ...


class NVMLError_NotFound(NVMLError): ...


class NVMLError_NotSupported(NVMLError): ...


class NVMLError_NoPermission(NVMLError): ...


class NVMLError_DriverNotLoaded(NVMLError): ...


def _value(found: Any) -> Any:
    if isinstance(found, str) and found.startswith("NVMLError"):
        raise globals()[found]
    return found


def nvmlInit() -> None:
    DRIVER.get("hangs", lambda: None)()
    _value(DRIVER.get("fails"))
    calls.append("init")


def nvmlShutdown() -> None:
    calls.append("shutdown")


def nvmlSystemGetDriverVersion() -> Any:
    return _value(DRIVER.get("version", "550.54"))


def nvmlDeviceGetCount() -> int:
    return len(DRIVER["cards"])


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    return _value(DRIVER["cards"][index])


def nvmlDeviceGetUUID(handle: Any) -> Any:
    return _value(handle["uuid"])


def nvmlDeviceGetName(handle: Any) -> Any:
    return _value(handle["name"])


def nvmlDeviceGetMemoryInfo(handle: Any) -> Any:
    return SimpleNamespace(total=_value(handle["memory"]))


def nvmlDeviceGetMigMode(handle: Any) -> list[int]:
    if "mig" not in handle:
        raise NVMLError_NotSupported
    return [int(handle["mig"] is not None), 0]


def nvmlDeviceGetMaxMigDeviceCount(handle: Any) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, index: int) -> Any:
    devices = handle["mig"]
    return _value(devices[index] if index < len(devices) else "NVMLError_NotFound")


def nvmlDeviceGetAttributes(handle: Any) -> Any:
    compute, gpu = _value(handle["slices"])
    return SimpleNamespace(computeInstanceSliceCount=compute, gpuInstanceSliceCount=gpu)
