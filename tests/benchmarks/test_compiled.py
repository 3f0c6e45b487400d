"""The report on compiled kernels: what it reads from machine code, and what kernels must keep."""

import importlib.util
from functools import cache

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

import compiled
from compiled import ARCHITECTURES, TILES

from kernels.groups import interpreted
from kernels.triton_groups import DEFAULT, Config, config_for

pytestmark = pytest.mark.skipif(interpreted(), reason="the interpreter compiles nothing")

SETTINGS = [
    (config, arch)
    for arch in ARCHITECTURES
    for config in (*{DEFAULT, config_for((arch // 10, arch % 10))}, TILES[2], TILES[-1])
]
"""What kernels are launched with; and what takes most registers, and most rows."""


made = cache(compiled.compiled)


@pytest.mark.parametrize(("config", "arch"), SETTINGS, ids=str)
@pytest.mark.parametrize("kernel", ["sums_kernel", "distances_kernel"])
def test_samples_are_read_in_128_bits_and_no_register_spills(
    kernel: str, config: Config, arch: int
) -> None:
    found = made(kernel, arch, config)
    assert found.local_bytes == 0
    assert found.widest_load_bits == 128
    tile = 4 * config.rows * config.features
    numbers = 2 * tile  # a thread reads its samples' numbers too, of 8 bytes for every 4 values
    assert tile <= found.loaded_bytes <= tile + numbers


NEEDED = {80: 19, 90: 36, 100: 54}
"""KiB that an SM must have on their way: bandwidth (of 90 an H200's) times 1 us over its SMs."""


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kernel", ["sums_kernel", "distances_kernel"])
def test_as_many_programs_fit_an_sm_as_a_setting_counts_on(kernel: str, arch: int) -> None:
    config = config_for((arch // 10, arch % 10))
    registers = -(-made(kernel, arch, config).registers // 8) * 8
    programs = 65536 // (registers * 32 * config.warps)
    assert programs * 4 * config.rows * config.features >= NEEDED[arch] * 1024


def test_a_card_that_is_not_in_the_table_has_the_default() -> None:
    assert config_for((8, 6)) == config_for((12, 0)) == DEFAULT


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_plan_does_not_spill_either(arch: int) -> None:
    assert compiled.compiled("plan_kernel", arch).local_bytes == 0


CODE = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.64 R2, [R4.64] ;
        /*0020*/                   LDG.E.128.CONSTANT R8, [R6.64] ;
        /*0030*/                   LDG.E.U8 R3, [R4.64] ;
        /*0040*/                   FADD R8, R8, R9 ;
        /*0050*/              @P0  BRA 0x20 ;
        /*0060*/                   LDG.E R2, [R4.64] ;
        /*0070*/              @P1  BRA 0xa0 ;
        /*0080*/                   BRA 0x10 ;
"""


def test_loads_of_a_loop_are_those_between_a_backward_branch_and_its_target() -> None:
    assert compiled.loops(CODE) == [[128, 8], [64, 128, 8, 32]]
