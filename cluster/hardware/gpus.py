"""The GPUs this process may use, found without initialising CUDA where NVIDIA's driver answers."""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fl.errors import reason_of
from fl.own_process import within

TIMEOUT = 10.0
"""Seconds that the driver may take to answer."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A whole GPU or a MIG device: what one process computes on."""

    uuid: str
    """As ``CUDA_VISIBLE_DEVICES`` takes it: ``GPU-...`` or ``MIG-...``."""
    name: str
    memory_bytes: int


Cards = dict[str, tuple[Gpu, ...]]
"""What each physical GPU offers, by UUID in the driver's order: itself, or its MIG devices."""


class DriverWarning(UserWarning):
    """A driver is there but gave no usable answer, so its GPUs are not used: one line, and why."""


def find_gpus(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES``, or else the Slurm job, leaves to this process.

    Asks the driver, or PyTorch where the driver's library or its Python module is missing. If the
    driver gives no usable answer, there are no GPUs, and a :class:`DriverWarning`. ``environ`` is
    the process's environment.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return ()
    try:
        listed = _ask_driver(_cards)
        cards = _ask_torch() if listed is None else listed
    except DriverWarning as warning:
        warnings.warn(warning, stacklevel=2)
        return ()
    if visible is None:
        return _of_job(cards, environ) if environ.get("SLURM_JOB_ID") else _devices(cards)
    # CUDA has already applied the variable to what PyTorch sees.
    return _devices(cards) if listed is None else select(cards, visible)


def driver_version() -> str | None:
    """Version of NVIDIA's driver; None where there is none, or it gives no usable answer."""
    try:
        return _ask_driver(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))
    except DriverWarning:
        return None


def select(cards: Cards, wanted: str) -> tuple[Gpu, ...]:
    """The devices that a value of ``CUDA_VISIBLE_DEVICES`` names, in its order.

    It is read as CUDA reads it: an entry is an index, or a UUID or its unique beginning; reading
    ends at the first entry that names no device (for CUDA "1st" names one, for us none), and if a
    device is named twice the result is empty. Indices count by PCI bus, as the driver does, and a
    GPU in MIG mode means all its MIG devices.
    """
    chosen: list[Gpu] = []
    for entry in wanted.split(","):
        named = _named(cards, entry.strip())
        if not named:
            break
        if set(named) & set(chosen):
            return ()
        chosen += named
    return tuple(chosen)


def _named(cards: Cards, entry: str) -> tuple[Gpu, ...]:
    if entry.removeprefix("+").isdecimal():
        return dict(enumerate(cards.values())).get(int(entry), ())
    by_uuid = {device.uuid: (device,) for device in _devices(cards)} | cards
    if entry in by_uuid:
        return by_uuid[entry]
    begins = entry.startswith(("GPU-", "MIG-"))
    matching = [devices for uuid, devices in by_uuid.items() if begins and uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else ()


def _of_job(cards: Cards, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that Slurm gave the job; none if it names none."""
    given = environ.get("SLURM_STEP_GPUS", environ.get("SLURM_JOB_GPUS", ""))
    if not given:
        if cards:
            warnings.warn(
                f"Slurm gave this job none of the machine's {len(cards)} GPUs; "
                "set CUDA_VISIBLE_DEVICES to use some all the same",
                stacklevel=3,
            )
        return ()
    # Slurm's indices count all GPUs of the node, so they do not fit a job that sees only its own.
    return _devices(cards) if len(cards) <= len(given.split(",")) else select(cards, given)


def _devices(cards: Cards) -> tuple[Gpu, ...]:
    return tuple(device for devices in cards.values() for device in devices)


def _ask_driver(question: Callable[[Any], Answer]) -> Answer | None:
    """The answer to a question that is asked by the module ``pynvml``; None without NVIDIA's
    library or that module."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None

    def ask() -> Answer:
        pynvml.nvmlInit()
        try:
            return question(pynvml)
        finally:
            pynvml.nvmlShutdown()

    try:
        return within(TIMEOUT, ask)
    except pynvml.NVMLError_LibraryNotFound:
        return None
    except TimeoutError as error:
        raise DriverWarning(f"running without GPUs: the NVIDIA driver gave {error}") from None
    except pynvml.NVMLError as error:
        raise DriverWarning(f"running without GPUs: the NVIDIA driver says: {error}") from error


def _cards(nvml: Any) -> Cards:
    """What the driver's GPUs offer, without those that this process may not open."""
    gpus = _handles(nvml, nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetHandleByIndex)
    return {
        nvml.nvmlDeviceGetUUID(gpu): (
            _mig_devices(nvml, gpu) if _in_mig_mode(nvml, gpu) else (_device(nvml, gpu),)
        )
        for gpu in gpus
    }


def _handles(nvml: Any, count: int, get: Callable[[int], Any]) -> list[Any]:
    """The handles below ``count`` that there are, and that this process may use."""
    found = []
    for index in range(count):
        with contextlib.suppress(nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            found.append(get(index))
    return found


def _in_mig_mode(nvml: Any, gpu: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError:  # a GPU, or a driver, that has no MIG
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _mig_devices(nvml: Any, gpu: Any) -> tuple[Gpu, ...]:
    most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    handles = _handles(nvml, most, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu))
    return tuple(_device(nvml, handle, mig=True) for handle in handles)


def _device(nvml: Any, handle: Any, *, mig: bool = False) -> Gpu:
    memory_bytes = nvml.nvmlDeviceGetMemoryInfo(handle).total
    if mig:  # the compute instances of one GPU instance share its memory
        slices = nvml.nvmlDeviceGetAttributes(handle)
        own, whole = slices.computeInstanceSliceCount, slices.gpuInstanceSliceCount
        memory_bytes = memory_bytes * own // whole
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=memory_bytes,
    )


def _ask_torch() -> Cards:
    """What CUDA shows this process. This initialises CUDA, so the driver is asked first."""
    import torch

    try:
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    except RuntimeError as error:
        reason = reason_of(error)[:200]
        raise DriverWarning(f"running without GPUs: PyTorch cannot use CUDA: {reason}") from error
    gpus = [
        Gpu(
            uuid=f"{'MIG' if ' MIG ' in gpu.name else 'GPU'}-{gpu.uuid}",
            name=gpu.name,
            memory_bytes=gpu.total_memory,
        )
        for gpu in found
    ]
    return {gpu.uuid: (gpu,) for gpu in gpus}
