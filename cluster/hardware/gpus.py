"""The GPUs this process may use, found without initialising CUDA where nvidia-smi is there."""

import contextlib
import re
import shutil
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIMEOUT = 10.0
"""Seconds that nvidia-smi may take to answer."""
QUERY = "--query-gpu=uuid,name,memory.total,mig.mode.current"
DRIVER_QUERY = "--query-gpu=driver_version"
ROW = re.compile(r"(?P<uuid>GPU-[^,\s]+), *(?P<name>.+), *(?P<mebibytes>[^,]+), *(?P<mode>[^,]+)")
LISTED_GPU = re.compile(r"GPU \d+: (?P<name>.+) \(UUID: (?P<uuid>GPU-[^)\s]+)\)")
LISTED_MIG = re.compile(r"MIG (?P<profile>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[^)\s]+)\)")
PROFILE = re.compile(r"((?P<own>[1-9])c\.)?(?P<all>[1-9])g\.(?P<gigabytes>\d{1,4})gb", re.ASCII)
"""A MIG profile such as 1g.18gb. 1c.3g.71gb is a third of a 3g.71gb, whose slices share memory."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A whole GPU or a MIG device: what one process computes on."""

    uuid: str
    """As ``CUDA_VISIBLE_DEVICES`` takes it: ``GPU-...`` or ``MIG-...``."""
    name: str
    memory_bytes: int
    """Of a MIG device as in its name, which NVIDIA rounds: up to a twentieth too much."""
    mig: bool = False


Cards = dict[str, tuple[Gpu, ...]]
"""What each physical GPU offers, by UUID in the driver's order: itself, or its MIG devices."""


class DriverWarning(UserWarning):
    """A driver is there but gave no usable answer, so its GPUs are not used."""


class _Unknown(Exception):
    """The GPUs could not be determined. The message is one line with the reason."""


def find_gpus(environ: Mapping[str, str], *, timeout: float = TIMEOUT) -> tuple[Gpu, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES``, or else the Slurm job, leaves to this process.

    Asks ``nvidia-smi``, or PyTorch where that is not on the PATH. If the driver gives no usable
    answer, there are no GPUs, and a :class:`DriverWarning`.

    Args:
        environ: the process's environment.
        timeout: seconds that each call of nvidia-smi may take.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return ()
    nvidia_smi = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    try:
        cards = _ask_nvidia_smi(nvidia_smi, environ, timeout) if nvidia_smi else _ask_torch()
    except _Unknown as error:
        warnings.warn(f"running without GPUs: {error}", DriverWarning, stacklevel=2)
        return ()
    if visible is None:
        return _of_job(cards, environ) if environ.get("SLURM_JOB_ID") else _devices(cards)
    # CUDA has already applied the variable to what PyTorch sees.
    return select(cards, visible) if nvidia_smi else _devices(cards)


def driver_version(environ: Mapping[str, str], *, timeout: float = TIMEOUT) -> str | None:
    """Version of NVIDIA's driver; None where ``nvidia-smi`` is missing or finds no GPU."""
    nvidia_smi = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    if not nvidia_smi:
        return None
    try:
        rows = _output([nvidia_smi, DRIVER_QUERY, "--format=csv,noheader"], environ, timeout)
    except _Unknown:
        return None
    return next((row.strip() for row in rows.splitlines() if row.strip()), None)


def select(cards: Cards, wanted: str) -> tuple[Gpu, ...]:
    """The devices that a value of ``CUDA_VISIBLE_DEVICES`` names, in its order.

    It is read as CUDA reads it: an entry is an index, or a UUID or its unique beginning; reading
    ends at the first entry that names no device, and if a device is named twice the result is
    empty. Indices count by PCI bus, as in nvidia-smi, and a GPU in MIG mode means all its MIG
    devices.
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
    # CUDA reads the leading digits as the number: "1st" is 1.
    if number := re.match(r"\+?0*([0-9]+)", entry):
        by_index = {str(i): devices for i, devices in enumerate(cards.values())}
        return by_index.get(number[1], ())
    if not entry.startswith(("GPU-", "MIG-")):
        return ()
    by_uuid = {device.uuid: (device,) for device in _devices(cards)} | cards
    if entry in by_uuid:
        return by_uuid[entry]
    matching = [devices for uuid, devices in by_uuid.items() if uuid.startswith(entry)]
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


def _ask_nvidia_smi(nvidia_smi: str, environ: Mapping[str, str], timeout: float) -> Cards:
    query = [nvidia_smi, QUERY, "--format=csv,noheader,nounits"]
    rows = _output(query, environ, timeout).splitlines()
    gpus = [_parse_row(row.strip()) for row in rows if row.strip()]
    if not any(gpu.mig for gpu in gpus):
        return {gpu.uuid: (gpu,) for gpu in gpus}
    devices = _parse_list(_output([nvidia_smi, "-L"], environ, timeout))
    return {gpu.uuid: devices.get(gpu.uuid, ()) if gpu.mig else (gpu,) for gpu in gpus}


def _parse_row(row: str) -> Gpu:
    """One GPU of the query. ``mig`` means that it is in MIG mode, where its memory is not used."""
    parsed = ROW.fullmatch(row)
    mig = parsed is not None and parsed["mode"] == "Enabled"
    if not parsed or not (mig or re.fullmatch("[0-9]{1,9}", parsed["mebibytes"])):
        raise _Unknown(f"cannot read what nvidia-smi says of a GPU: {row[:200]!r}")
    memory_bytes = 0 if mig else int(parsed["mebibytes"]) * 2**20
    return Gpu(uuid=parsed["uuid"], name=parsed["name"], memory_bytes=memory_bytes, mig=mig)


def _parse_list(listing: str) -> Cards:
    """The MIG devices of each listed GPU."""
    cards: Cards = {}
    card = None
    for line in map(str.strip, listing.splitlines()):
        if line.startswith("GPU "):
            card = LISTED_GPU.match(line)
        elif line.startswith("MIG "):
            if not card:
                raise _Unknown(f"cannot read which GPU nvidia-smi lists {line[:200]!r} for")
            device = _parse_mig(line, card["name"])
            cards[card["uuid"]] = (*cards.get(card["uuid"], ()), device)
    return cards


def _parse_mig(line: str, card: str) -> Gpu:
    """One MIG device of the list; its name contains its memory in gigabytes."""
    listed = LISTED_MIG.match(line)
    profile = listed and PROFILE.match(listed["profile"])
    if not listed or not profile:
        raise _Unknown(f"cannot read what nvidia-smi says of a MIG device: {line[:200]!r}")
    own, slices = int(profile["own"] or profile["all"]), int(profile["all"])
    return Gpu(
        uuid=listed["uuid"],
        name=f"{card} MIG {listed['profile']}",
        memory_bytes=int(profile["gigabytes"]) * 10**9 * own // slices,
        mig=True,
    )


def _output(command: Sequence[str], environ: Mapping[str, str], timeout: float) -> str:
    """What nvidia-smi prints; empty where it finds no GPU, which it reports as a failure."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise _Unknown(f"cannot run nvidia-smi: {error}") from error
    try:
        output, complaint = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        # A process that hangs in the driver cannot be killed, so do not wait for it long.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        raise _Unknown(f"nvidia-smi gave no answer within {timeout:g} seconds") from None
    if "No devices were found" in output + complaint:
        return ""
    if process.returncode:
        reason = " ".join((output + complaint).split())[:200]
        raise _Unknown(f"nvidia-smi failed with status {process.returncode}: {reason}")
    return output


def _ask_torch() -> Cards:
    """What CUDA shows this process. This initialises CUDA, so nvidia-smi is asked first."""
    import torch

    try:
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    except RuntimeError as error:
        raise _Unknown(f"PyTorch cannot use CUDA: {' '.join(str(error).split())[:200]}") from error
    gpus = [
        Gpu(
            uuid=f"{'MIG' if ' MIG ' in gpu.name else 'GPU'}-{gpu.uuid}",
            name=gpu.name,
            memory_bytes=gpu.total_memory,
            mig=" MIG " in gpu.name,
        )
        for gpu in found
    ]
    return {gpu.uuid: (gpu,) for gpu in gpus}
