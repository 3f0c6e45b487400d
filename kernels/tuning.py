"""Launch settings of the Triton kernels, for samples that fill a GPU: measured once per device and
shape, cached on the node."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.interpreter import interpreted


@dataclass(frozen=True)
class Config:
    """How a kernel is launched: samples and features of a tile, and warps per program."""

    rows: int
    features: int
    warps: int


CANDIDATES = tuple(
    Config(rows, features, warps)
    for rows, features, warps in (
        (8, 256, 4),
        (8, 512, 4),
        (8, 1024, 8),
        (16, 128, 4),
        (16, 256, 4),
        (16, 512, 8),
        (32, 128, 4),
        (32, 256, 8),
    )
)
SMALL = Config(16, 256, 4)  # a launch takes microseconds: measuring all would take 20 s
INTERPRETED = Config(64, 256, 4)  # nothing to measure in the interpreter


@dataclass(frozen=True)
class Shape:
    """What the best settings depend on. ``device``: its name, None in the interpreter."""

    device: str | None
    dtype: torch.dtype
    num_features: int
    large: bool
    """Whether the samples fill the device."""

    @classmethod
    def of(cls, flat: Tensor) -> "Shape":
        """The shape class of (N, F) samples."""
        real = flat.is_cuda and not interpreted()
        name = torch.cuda.get_device_name(flat.device) if real else None
        return cls(name, flat.dtype, flat.shape[1], flat.numel() >= 1 << 24)


log = logging.getLogger(__name__)
_chosen: dict[tuple[str, Shape], Config] = {}


def tuned(kernel: str, shape: Shape, launch: Callable[[Config], None]) -> Config:
    """The fastest of `CANDIDATES` for a kernel, measured by launching it on large samples.

    The first call for a shape reads the node's cache, else it measures and writes the cache. If the
    cache cannot be read or written, the only cost is another measurement.
    """
    if shape.device is None:
        return INTERPRETED
    if not shape.large:
        return SMALL
    if (kernel, shape) not in _chosen:
        _chosen[kernel, shape] = _recall(kernel, shape) or _measure(kernel, shape, launch)
    return _chosen[kernel, shape]


def forget() -> None:
    """Clears what this process chose: the next call for a shape looks into the cache again."""
    _chosen.clear()


def _measure(kernel: str, shape: Shape, launch: Callable[[Config], None]) -> Config:
    from triton.testing import do_bench

    times = {c: do_bench(lambda c=c: launch(c), warmup=5, rep=20) for c in CANDIDATES}
    best = min(times, key=lambda c: times[c])
    _remember(kernel, shape, best)
    return best


def cache_file() -> Path:
    """The cache: in the folder TRITON_CACHE_DIR if that is set, else in the node's /tmp."""
    folder = os.environ.get("TRITON_CACHE_DIR")
    if folder is None:
        folder = os.path.join(tempfile.gettempdir(), f"onefold-{os.getuid()}")
    return Path(folder) / "onefold-launches"


def cache_key(kernel: str, shape: Shape) -> str:
    """The name of a kernel's settings for a shape in the node's cache."""
    import triton

    parts = (kernel, shape.device, shape.dtype, shape.num_features)
    return " | ".join(map(str, (*parts, torch.__version__, triton.__version__)))


def _read() -> dict[str, dict[str, int]]:
    """The node's cache; empty where there is none, or a damaged one, which is named."""
    path = cache_file()
    try:
        if path.is_fifo():  # which keeps who opens it waiting
            return {}
        checksum, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    if checksum.decode(errors="replace") != hashlib.sha256(content).hexdigest():
        log.warning("%s is damaged: it is ignored, and made again", path)
        return {}
    entries: dict[str, dict[str, int]] = json.loads(content)
    return entries


def _recall(kernel: str, shape: Shape) -> Config | None:
    entry = _read().get(cache_key(kernel, shape))
    return next((c for c in CANDIDATES if asdict(c) == entry), None)


def _remember(kernel: str, shape: Shape, config: Config) -> None:
    path = cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        entries = {**_read(), cache_key(kernel, shape): asdict(config)}
        content = json.dumps(entries, indent=1).encode()
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        os.replace(file.name, path)  # atomic, as other processes may write too
    except OSError:
        pass
