"""The distance filter's backends: which of them runs, and the one by torch, on any device."""

import importlib.util
import logging
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.exact import BITS, rounded
from kernels.groups import Groups, Sums, interpreted, narrow, wide

NAMES = ("auto", "reference", "torch", "triton")
# Looked up once and without importing it: CPU builds of torch and macOS come without Triton.
TRITON_INSTALLED = importlib.util.find_spec("triton") is not None

log = logging.getLogger(__name__)


def resolve(backend: str, device: torch.device) -> str:
    """The implementation to run: "auto" becomes triton on CUDA where it works, else torch.

    Raises:
        ValueError: an unknown name, or triton where it cannot run.
    """
    if backend not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, got {backend!r}")
    if backend == "auto":
        return "triton" if device.type == "cuda" and TRITON_INSTALLED and _compiles() else "torch"
    if backend == "triton":
        if not TRITON_INSTALLED:
            raise ValueError("the triton backend needs the package triton, which is not installed")
        if device.type != "cuda" and not interpreted():
            raise ValueError(
                f"the triton backend needs CUDA tensors, got {device}; "
                "TRITON_INTERPRET=1 runs it on the CPU"
            )
    return backend


@cache
def _compiles() -> bool:
    """Whether Triton can compile a kernel for the GPU and run it, for which it needs gcc."""
    from kernels.triton_fused import dropped

    try:
        dropped(torch.ones(1, 1, device="cuda"), torch.ones(1, 1, device="cuda").long(), 0, 0, 1.0)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        log.warning("Triton does not work here; torch computes in its place, slower: %s", reason)
        return False
    return True


def fuses(device: torch.device) -> bool:
    """Whether a training step's pieces are computed there by kernels of this package."""
    return resolve("auto", device) == "triton"


def grouping(backend: str) -> Callable[[Tensor, Tensor, int], Groups]:
    """The `Groups` class of a resolved backend, torch or triton, for (N, F) samples."""
    if backend == "torch":
        return TorchGroups
    from kernels.triton_groups import TritonGroups  # imports triton

    return TritonGroups


# The torch backend, batched over the classes.

PIECE = 1 << (24 - BITS)  # samples whose sum a float32 holds exactly
CPU_BLOCK = 1 << 18  # elements per block of samples: 1 MiB stays in cache
DEVICE_BLOCK = 1 << 26  # elsewhere the block only bounds memory


class TorchGroups:
    """`Groups` by torch operations."""

    def __init__(self, flat: Tensor, labels: Tensor, num_classes: int) -> None:
        self.flat = flat.float()
        self.labels = labels.long().clamp(-1, num_classes)
        keys, self.order = torch.sort(self.labels.to(narrow(num_classes)), stable=True)
        classes = torch.arange(num_classes + 1, device=flat.device)
        self.bounds = torch.searchsorted(keys, classes.to(keys.dtype))
        # Labels out of range must not be used as indices.
        self.labels.clamp_(0, num_classes - 1)

    def sums(self, unit: float, *, whole: bool) -> Sums:
        """Exact sums (C, F) in whole units, see `Groups.sums`."""
        # An embedding bag sums rows of a table given by their numbers: here each sample once, in
        # one pass, where index_add would be slower. First bags of at most PIECE samples within a
        # class are summed in float32, then the bags of each class in double; both exactly.
        flat = self.flat if whole else rounded(self.flat, unit)
        starts, counts = self.bounds[:-1], self.bounds.diff()
        cuts = torch.arange(0, len(flat), PIECE, device=flat.device)
        cuts = torch.cat((starts, cuts)).sort().values
        pieces = F.embedding_bag(self.order, flat, cuts, mode="sum")
        numbers = torch.arange(len(cuts), device=flat.device)
        first = torch.searchsorted(cuts, starts)
        first[0] = 0  # bags start at 0, even with a label below 0
        sums = F.embedding_bag(numbers, pieces.to(wide(pieces.device)), first, mode="sum")
        return Sums((sums / unit).long(), counts)

    def distances(self, centroids: Tensor) -> Tensor:
        """(N,) float32 distances to ``centroids`` (C, F), see `Groups.distances`."""
        # In blocks, so that all differences are never in memory at once.
        num_samples, num_features = self.flat.shape
        elements = CPU_BLOCK if self.flat.device.type == "cpu" else DEVICE_BLOCK
        block = min(num_samples, max(1, elements // num_features))
        distances = self.flat.new_empty(num_samples)
        buffer = self.flat.new_empty(block, num_features)
        parts = (t.split(block) for t in (self.flat, self.labels, distances))
        for samples, labels, out in zip(*parts, strict=True):
            squares = torch.index_select(centroids, 0, labels, out=buffer[: len(samples)])
            # (a - b)², without reduction: subtracts and squares in one pass over the block.
            torch.ops.aten.mse_loss.out(samples, squares, 0, out=squares)
            torch.sum(squares, dim=1, out=out)
        return distances.sqrt_()
