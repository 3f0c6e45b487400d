"""Matrix products of one client's rows on a CPU, by the faster library, independent of alignment.

Rows lie in a batch beside other clients' rows, so the result's bits must not depend on where in
memory they are. With MKL they do not if memory is aligned to 64 bytes, as all is that torch
allocates; with oneDNN, which packs its operands, they never do. MKL is faster than oneDNN on
Intel's processors, by a quarter, and slower on AMD's, by half (docs/dev/log.md).
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fl.training.torch_internals import onednn_product

CPUINFO = Path("/proc/cpuinfo")
ALIGNED_BYTES = 64


def available(x: Tensor) -> bool:
    """Whether there are such products for rows like these."""
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
    return on_cpu and (uses_mkl() or torch.backends.mkldnn.is_available())


def product(a: Tensor, b: Tensor, *, add: Tensor | None = None, out: Tensor) -> None:
    """Writes ``a b + add`` to ``out``: a (n, k), b (k, m), add (m,), out (n, m)."""
    if not uses_mkl():
        out.copy_(onednn_product(a, b, add))
    elif not _is_aligned(out):
        aligned = torch.empty_like(out)
        product(a, b, add=add, out=aligned)
        out.copy_(aligned)
    else:
        a, b = (t if _is_aligned(t) else t.clone() for t in (a, b))
        if add is None:
            torch.mm(a, b, out=out)
        else:
            torch.addmm(add, a, b, out=out)


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % ALIGNED_BYTES == 0


@lru_cache
def uses_mkl() -> bool:
    """Whether products go to MKL: on Intel's processors, where it is the faster one."""
    try:
        return torch.backends.mkl.is_available() and "GenuineIntel" in CPUINFO.read_text()
    except OSError:  # no Linux
        return False
