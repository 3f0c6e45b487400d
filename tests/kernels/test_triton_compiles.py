"""The Triton kernels compile for a Hopper GPU, which needs none: only its compiler.

The interpreter accepts much that the compiler does not.
"""

from typing import Any

import pytest

from kernels.interpreter import interpreted
from tests.kernels.cases import HAS_CUDA

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    HAS_CUDA or interpreted(), reason="a GPU compiles them for real, the interpreter not at all"
)

PLAN = {"order": "*i64", "bounds": "*i64", "piece_ends": "*i64"}
SAMPLES = {"num_features": "i32", "num_classes": "i32", "row_stride": "i32", "steps": "i32"}
TILE = {"piece": 128, "rows": 16, "features": 256}
ONES = dict.fromkeys(("num_features", "num_classes", "row_stride", "steps"), 1)

CASES = {
    "plan": ("plan_kernel", {"keys": "*i8", **PLAN, "num_keys": "i32"} | SAMPLES, {"block": 64}),
    "plan of one": ("plan_kernel", {"keys": "*i64", **PLAN}, {"num_keys": 1, "block": 2} | ONES),
    "sums": ("sums_kernel", {"flat": "*fp32", "sums": "*fp32"} | PLAN | SAMPLES, {}),
    "sums of bfloat16": ("sums_kernel", {"flat": "*bf16", "sums": "*fp32"} | PLAN | SAMPLES, {}),
    "sums, far": (
        "sums_kernel",
        {"flat": "*fp16", "sums": "*fp32"} | PLAN | SAMPLES | {"feature_stride": "i64"},
        {},
    ),
    "sums of one": ("sums_kernel", {"flat": "*fp32", "sums": "*fp32"} | PLAN, ONES),
    "means": ("means_kernel", {"sums": "*fp32", "centroids": "*fp32"} | PLAN | SAMPLES, {}),
    "means of one": ("means_kernel", {"sums": "*fp32", "centroids": "*fp32"} | PLAN, ONES),
    "distances": (
        "distances_kernel",
        {"flat": "*fp32", "centroids": "*fp32", "distances": "*fp32", "centroid_stride": "i32"}
        | PLAN
        | SAMPLES,
        {},
    ),
    "distances of one": (
        "distances_kernel",
        {"flat": "*fp16", "centroids": "*fp32", "distances": "*fp32"} | PLAN,
        {"centroid_stride": 1} | ONES,
    ),
    "select": (
        "select_kernel",
        {"distances": "*fp32", "kept": "*i8", "status": "*i64"}
        | {"numerator": "i32", "denominator": "i32"}
        | PLAN,
        {"block": 512},
    ),
    "select all": (
        "select_kernel",
        {"distances": "*fp32", "kept": "*i8", "status": "*i64"} | PLAN,
        {"numerator": 1, "denominator": 1, "block": 256},
    ),
    "count": ("count_kernel", {"kept": "*i8", "counts": "*i64", "num_samples": "i32"}, {}),
    "list": (
        "list_kernel",
        {"kept": "*i8", "counts": "*i64", "indices": "*i64", "status": "*i64"}
        | {"num_samples": "i32"}
        | PLAN
        | SAMPLES,
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_compiles(case: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from kernels import triton_kernels, triton_selection

    name, types, constants = CASES[case]
    kernel: Any = getattr(triton_kernels, name, None) or getattr(triton_selection, name)
    constants = {"feature_stride": 1, "block": 2048} | TILE | constants
    signature = {n: types.get(n, "constexpr") for n in kernel.arg_names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={
            (kernel.arg_names.index(n),): constants[n]
            for n, kind in signature.items()
            if kind == "constexpr"
        },
    )
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
