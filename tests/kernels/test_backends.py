"""Which backend runs, and that none is needed that is not there."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import backends
from tests.kernels.cases import interpreted_or_on_cuda, run

ROOT = Path(__file__).parents[2]


def test_auto_is_torch_off_cuda_and_triton_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "TRITON_INSTALLED", True)
    monkeypatch.setattr(backends, "_compiles", lambda: True)
    assert backends.resolve("auto", torch.device("cpu")) == "torch"
    assert backends.resolve("auto", torch.device("mps")) == "torch"
    assert backends.resolve("auto", torch.device("cuda", 1)) == "triton"
    monkeypatch.setattr(backends, "TRITON_INSTALLED", False)
    assert backends.resolve("auto", torch.device("cuda")) == "torch"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU on which Triton works")
def test_where_triton_cannot_compile_auto_is_torch_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a process, as where the GPU's machine has no C compiler."""
    pytest.importorskip("triton")
    backends._compiles.cache_clear()
    assert [backends.resolve("auto", torch.device("cuda")) for _ in range(2)] == ["torch"] * 2
    (line,) = caplog.messages
    assert "Triton does not work here" in line
    backends._compiles.cache_clear()


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="backend must be one of auto, reference, torch, triton"):
        run(torch.zeros(1, 1), [0], 1.0, "numpy")


def test_triton_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "TRITON_INSTALLED", True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="needs CUDA tensors, got cpu"):
        backends.resolve("triton", torch.device("cpu"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backends.resolve("triton", torch.device("cpu")) == "triton"
    monkeypatch.setattr(backends, "TRITON_INSTALLED", False)
    with pytest.raises(ValueError, match="which is not installed"):
        backends.resolve("triton", torch.device("cuda"))


@interpreted_or_on_cuda
def test_a_failure_of_triton_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    import kernels.triton_groups

    def fail(tensor: torch.Tensor) -> None:
        raise RuntimeError("out of shared memory")

    monkeypatch.setattr(kernels.triton_groups, "on_device", fail)
    with pytest.raises(RuntimeError, match="out of shared memory"):
        run(torch.zeros(1, 1), [0], 1.0, "triton")


@pytest.mark.process
def test_the_package_works_without_triton_and_never_asks_for_it() -> None:
    script = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
import torch, kernels
found = kernels.nearest_to_centroid(torch.rand(9, 2), torch.zeros(9).long(), 1, 0.5)
assert len(found.indices) == 4
assert not any(name.partition(".")[0] == "triton" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
