"""How often the host waits for the device in a call of the filter."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import nearest_to_centroid
from tests.kernels.cases import DEVICE, FAST, HAS_TRITON

pytestmark = pytest.mark.gpu

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "_unique2"}
"""Operations of which the host needs a value: a number, or the size of the result."""


class Waits(TorchDispatchMode):
    """Counts what would wait on a GPU, but nothing that happens inside of a Triton kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._off = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if not self._off and (name in WAITING or _takes_a_size(name, args, kwargs)):
            self.names.append(name)
        return func(*args, **kwargs)

    def alone(self, function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        """The function, of whose operations none is counted: it is one that waits, if named."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self.names += [name] * bool(name)
            before, self._off = self._off, True
            try:
                return function(*args, **kwargs)
            finally:
                self._off = before

        return called


def _takes_a_size(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a copy leaves its device, or the size of a result is in the values."""
    if name == "_to_copy":
        return kwargs.get("device", args[0].device) != args[0].device
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("index", "index_put", "index_put_"):
        return any(i is not None and i.dtype == torch.bool for i in args[1])
    return False


class Launched:
    """A Triton kernel of which nothing is counted: the interpreter runs it by torch operations."""

    def __init__(self, kernel: Any, waits: Waits) -> None:
        self._kernel, self._waits = kernel, waits

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self._waits.alone(self._kernel[grid])


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    found = Waits()
    monkeypatch.setattr(Tensor, "tolist", found.alone(Tensor.tolist, "tolist"))
    if HAS_TRITON:
        from kernels import triton_groups

        for name in [n for n in vars(triton_groups) if n.endswith("_kernel")]:
            kernel = Launched(getattr(triton_groups, name), found)
            monkeypatch.setattr(triton_groups, name, kernel)
    return found


def draw(equal: bool) -> tuple[Tensor, Tensor]:
    """Three classes; if ``equal`` exact distances must decide."""
    samples = torch.ones(90, 5) if equal else (torch.arange(450.0) ** 2).view(90, 5)
    return samples.to(DEVICE), torch.arange(90, device=DEVICE) % 3


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("step", [None, 1.0])
@pytest.mark.parametrize("equal", [False, True])
def test_the_host_waits_at_most_twice(
    waits: Waits, backend: str, step: float | None, equal: bool
) -> None:
    samples, labels = draw(equal)
    with waits:
        found = nearest_to_centroid(samples, labels, 3, 0.5, step=step, backend=backend)
    assert len(waits.names) <= 2 - (step is not None), waits.names
    assert len(found.indices) == 45


@pytest.mark.skipif(DEVICE.type != "cuda", reason="only CUDA itself knows all that waits")
@pytest.mark.parametrize("equal", [False, True])
def test_cuda_counts_no_more(equal: bool) -> None:
    samples, labels = draw(equal)
    nearest_to_centroid(samples, labels, 3, 0.5)  # kernels are compiled
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waited:
            warnings.simplefilter("always")
            nearest_to_centroid(samples, labels, 3, 0.5)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert len(waited) <= 2, [str(each.message) for each in waited]
