"""What the distance filter's Triton kernels compile to, for GPUs that need not be here.

    python benchmarks/compiled.py --json FILE

Compiles every kernel for each architecture as a launch on float32 images of 784 pixels does, and
reads from the machine code: registers a thread, bytes of local memory a thread (where registers
spill), bytes of shared memory, and of the loop that reads samples the widest load and the bytes
that are read for one sample in all its turns, beside the bytes that a sample has.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
import tyro
from machine import Rows
from rich.console import Console
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import triton_groups
from kernels.triton_groups import PIECE, Config

ARCHITECTURES = {80: "A100", 90: "H100", 100: "B200"}
FEATURES = 784
TYPES = {
    **{"keys": "*i8", "order": "*i64", "bounds": "*i64", "piece_ends": "*i64", "flat": "*fp32"},
    **{"sums": "*i64", "centroids": "*fp32", "distances": "*fp32", "constant": "fp32"},
}
"""Of the kernels' arguments; those that are not named are i32."""
BLOCK = 1024
"""The largest that the plan is launched with."""
TILES = tuple(
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
"""Launch settings that come into question for the kernels that read samples."""
DIVISIBLE = ("row_stride", "num_features", "centroid_stride")
"""Numbers of which Triton knows that 16 divides them, as of 784."""


@dataclass(frozen=True)
class Compiled:
    """A kernel's use of an SM, per thread or program, and of its loop over samples."""

    registers: int
    local_bytes: int
    """Per thread; more than 0 where registers spill."""
    shared_bytes: int
    widest_load_bits: int
    """Of the loop that loads most; 0 without loops."""
    loaded_bytes: float
    """By all threads of a program in one turn of that loop."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compiles the kernels and prints a table."""

    json: Path | None = None
    """File that gets a line of JSON for each figure, as soon as it is known."""


def main(options: Options) -> int:
    """Compiles all and prints the table; returns the exit status."""
    table = Table("kernel", "tile", *ARCHITECTURES.values(), title=f"triton {triton.__version__}")
    rows = Rows("compiled", options.json)
    for name, config in cases():
        found = {gpu: compiled(name, arch, config) for arch, gpu in ARCHITECTURES.items()}
        tile = f"{config.rows} x {config.features}, {config.warps} warps" if config else ""
        table.add_row(name, tile, *(described(c, config) for c in found.values()))
        each = {gpu: asdict(c) for gpu, c in found.items()}
        rows.add(kernel=name, config=config and asdict(config), found=each)
    Console(width=120).print(table)
    return 0


def cases() -> list[tuple[str, Config | None]]:
    """Every kernel, those that read samples with each of their launch settings."""
    reading = [(n, c) for n in ("sums_kernel", "distances_kernel") for c in TILES]
    return [("plan_kernel", None), *reading]


def described(found: Compiled, config: Config | None) -> str:
    """A cell of the table."""
    text = f"{found.registers} regs, {found.local_bytes} spilt, {found.shared_bytes} shared"
    if config is None:
        return text
    sample = found.loaded_bytes / config.rows / config.features * FEATURES
    return f"{text}, {found.widest_load_bits} bit, {sample:.0f} B"


def compiled(name: str, arch: int, config: Config | None = None) -> Compiled:
    """Compiles a kernel of the filter for compute capability ``arch``, without a GPU."""
    kernel = getattr(triton_groups, name)
    constants = {"block": BLOCK, "piece": PIECE, "feature_stride": 1}
    if config:
        constants |= {"rows": config.rows, "features": config.features}
    types = {n: TYPES.get(n, "i32") for n in kernel.arg_names if n not in constants}
    divisible = [n for n, kind in types.items() if kind.startswith("*") or n in DIVISIBLE]
    warps = config.warps if config else 8
    return read(compile_for(arch, kernel, types, constants, divisible, warps), warps)


def compile_for(
    arch: int,
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, int],
    divisible: Sequence[str] = (),
    warps: int = 4,
) -> bytes:
    """Machine code of a kernel for compute capability ``arch``.

    Args:
        types: of arguments; those without one are among the ``constants``.
        divisible: arguments of which Triton is told that 16 divides them.
    """
    index = {name: (number,) for number, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature={n: types.get(n, "constexpr") for n in kernel.arg_names},
        constexprs={index[n]: constants[n] for n in kernel.arg_names if n not in types},
        attrs={index[n]: [["tt.divisibility", 16]] for n in divisible},
    )
    target = GPUTarget("cuda", arch, 32)
    made: Any = triton.compile(source, target=target, options={"num_warps": warps})
    return bytes(made.asm["cubin"])


def read(binary: bytes, warps: int) -> Compiled:
    """The figures of a compiled kernel, from its machine code."""
    usage = used(binary)
    widths = max(loops(told(binary, "-sass")), key=sum, default=[])
    return Compiled(
        registers=usage["REG"],
        local_bytes=usage["LOCAL"],
        shared_bytes=usage["SHARED"],
        widest_load_bits=max(widths, default=0),
        loaded_bytes=sum(widths) / 8 * 32 * warps,
    )


def used(binary: bytes) -> dict[str, int]:
    """What a compiled kernel takes: REG registers and LOCAL bytes a thread, SHARED bytes a program.

    This is known without reading its instructions, which takes longer than compiling it.
    """
    usage = told(binary, "-res-usage")
    found = {n: int(v) for n, v in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    return {**found, "LOCAL": found["LOCAL"] + found["STACK"]}


def told(binary: bytes, what: str) -> str:
    """What cuobjdump, which Triton brings, prints of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def loops(code: str) -> list[list[int]]:
    """Bits of the loads from global memory in each loop: from a backward branch's target to it."""
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", code)
    numbered = [(int(address, 16), text) for address, text in lines]
    found = []
    for address, text in numbered:
        branch = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if branch and (target := int(branch[1], 16)) < address:
            body = [t for a, t in numbered if target <= a <= address]
            found.append([width for t in body if (width := load_bits(t))])
    return found


def load_bits(instruction: str) -> int:
    """Bits that a thread loads from global memory by an instruction; 0 if it loads none."""
    load = re.search(r"\bLDG\.\S*", instruction)
    if load is None:
        return 0
    wide = re.search(r"\.(64|128|256)\b", load[0])
    narrow = re.search(r"\.[US](8|16)\b", load[0])
    return int((wide or narrow or [0, 32])[1])


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
