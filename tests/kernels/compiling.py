"""Compiles the Triton kernels for a Hopper GPU, which needs none: only its compiler.

The interpreter accepts much that the compiler does not.
"""

import importlib.util
from typing import Any

import pytest

from kernels.interpreter import interpreted
from tests.kernels.cases import HAS_CUDA, HAS_TRITON

compiled_elsewhere = pytest.mark.skipif(
    HAS_CUDA or interpreted() or importlib.util.find_spec("triton") is None,
    reason="a GPU compiles them for real, the interpreter not at all; needs Triton",
)
interpreted_or_on_cuda = pytest.mark.skipif(
    not HAS_TRITON, reason="runs in test_interpreter.py, or on CUDA"
)

PLAN = {"order": "*i64", "bounds": "*i64", "piece_ends": "*i64"}
SAMPLES = {"num_features": "i32", "num_classes": "i32", "row_stride": "i32", "steps": "i32"}
ONES = dict.fromkeys(("num_features", "num_classes", "row_stride", "steps"), 1)
"""What is 1 is a constant to Triton."""
DEFAULTS = {"feature_stride": 1, "block": 2048, "piece": 128, "rows": 16, "features": 256}


def assert_compiles(kernel: Any, types: dict[str, str], constants: dict[str, int]) -> None:
    """For arguments of these types, all others constants: some of their own, else the defaults."""
    from compiled import compile_for

    assert compile_for(90, kernel, types, DEFAULTS | constants)
