"""Runs the Triton tests in Triton's interpreter, where no GPU runs them for real.

In a process of its own: Triton must know before its first import, and something else in this one
may have imported it.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.groups import interpreted
from tests.kernels.cases import HAS_CUDA

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(HAS_CUDA or interpreted(), reason="the tests run in this process")
def test_the_triton_kernels_in_the_interpreter() -> None:
    found = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *("-k", "triton and not without_triton", "tests/kernels"),
        ],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-2000:]
    assert " passed" in found.stdout
