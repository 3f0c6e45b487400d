"""The distance filter's Triton backend: `Groups` by the Triton kernels of this package."""

import contextlib
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.exact import rounding
from kernels.groups import Sums, interpreted, narrow

# The Triton kernels of the distance filter: class bounds, sums and distances.
#
# Samples are sorted by class (``order``), and each class is cut into pieces of at most ``piece``
# samples. A program works on samples of one piece, so that the class's centroid is read once for
# many samples. Only whole numbers are added atomically, so runs repeat to the bit. All element
# offsets are 64 bits.


@triton.jit
def lower_bound(keys, values, num_keys, steps):  # type: ignore[no-untyped-def]
    """First position of each of ``values`` in the sorted ``keys``, by ``steps`` halvings."""
    low = values.to(tl.int64) * 0
    high = low + num_keys
    for _ in range(steps):
        middle = (low + high) // 2
        searching = low < high
        key = tl.load(keys + middle, mask=searching, other=0).to(tl.int64)
        below = searching & (key < values)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    return low


@triton.jit
def plan_kernel(  # type: ignore[no-untyped-def]
    keys, bounds, piece_ends, num_keys, num_classes, steps, piece: tl.constexpr, block: tl.constexpr
):
    """Where each class begins in the sorted keys, and how many pieces end with it; one program."""
    pieces_before = tl.zeros((1,), tl.int64)
    for first in range(0, num_classes + 1, block):
        classes = first + tl.arange(0, block)
        begin = lower_bound(keys, classes, num_keys, steps)
        end = lower_bound(keys, classes + 1, num_keys, steps)
        tl.store(bounds + classes, begin, mask=classes <= num_classes)
        pieces = tl.where(classes < num_classes, (end - begin + piece - 1) // piece, 0)
        tl.store(
            piece_ends + classes, pieces_before + tl.cumsum(pieces, 0), mask=classes < num_classes
        )
        pieces_before += tl.sum(pieces, 0)


@triton.jit
def find_piece(  # type: ignore[no-untyped-def]
    bounds, piece_ends, number, num_classes, steps, piece: tl.constexpr
):
    """Class of a piece, and the positions where it begins and ends (equal if there is none)."""
    low = number.to(tl.int32) * 0
    high = low + num_classes
    for _ in range(steps):
        middle = (low + high) // 2
        searching = low < high
        end = tl.load(piece_ends + middle, mask=searching, other=0)
        behind = searching & (end <= number)
        low = tl.where(behind, middle + 1, low)
        high = tl.where(behind, high, middle)
    exists = low < num_classes
    before = tl.load(piece_ends + low - 1, mask=exists & (low > 0), other=0)
    begin = tl.load(bounds + low, mask=exists, other=0) + (number - before) * piece
    end = tl.load(bounds + low + 1, mask=exists, other=0)
    begin = tl.where(exists, begin, 0)
    return low, begin, tl.minimum(begin + piece, end)


@triton.jit
def sums_kernel(  # type: ignore[no-untyped-def]
    flat,
    order,
    bounds,
    piece_ends,
    sums,
    constant,
    constant_bits,
    num_features,
    num_classes,
    row_stride,
    feature_stride,
    steps,
    piece: tl.constexpr,
    rows: tl.constexpr,
    features: tl.constexpr,
):
    """Adds each piece's samples in units to its class, for a tile of features.

    Beside the constant a value's bits are its rounded number of units (kernels/exact.py).
    """
    tiles = tl.cdiv(num_features, features)
    number = (tl.program_id(0) // tiles).to(tl.int64)
    columns = (tl.program_id(0) % tiles) * features + tl.arange(0, features)
    inside = columns < num_features
    c, begin, end = find_piece(bounds, piece_ends, number, num_classes, steps, piece)
    if begin < end:
        total = tl.zeros((rows, features), tl.int32)
        for first in range(begin, end, rows):
            positions = first + tl.arange(0, rows)
            samples = tl.load(order + positions, mask=positions < end, other=0)
            offsets = samples[:, None] * row_stride + columns[None, :].to(tl.int64) * feature_stride
            mask = (positions < end)[:, None] & inside[None, :]
            values = tl.load(flat + offsets, mask=mask, other=0).to(tl.float32)
            total += (values + constant).to(tl.int32, bitcast=True) - constant_bits
        places = sums + c.to(tl.int64) * num_features + columns
        tl.atomic_add(places, tl.sum(total, 0).to(tl.int64), mask=inside, sem="relaxed")


@triton.jit
def distances_kernel(  # type: ignore[no-untyped-def]
    flat,
    order,
    bounds,
    piece_ends,
    centroids,
    distances,
    num_features,
    num_classes,
    row_stride,
    feature_stride,
    centroid_stride,
    steps,
    piece: tl.constexpr,
    rows: tl.constexpr,
    features: tl.constexpr,
):
    """Distances of ``rows`` samples of a piece to its centroid: reads the samples once more.

    It goes through the pieces backwards, because the cache still holds those read last.
    """
    program = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    parts: tl.constexpr = piece // rows
    number = program // parts
    c, begin, end = find_piece(bounds, piece_ends, number, num_classes, steps, piece)
    positions = begin + (program % parts) * rows + tl.arange(0, rows)
    real = positions < end
    if begin + (program % parts) * rows < end:
        samples = tl.load(order + positions, mask=real, other=0)
        squares = tl.zeros((rows, features), tl.float32)
        for first in range(0, num_features, features):
            columns = first + tl.arange(0, features)
            inside = columns < num_features
            offsets = samples[:, None] * row_stride + columns[None, :].to(tl.int64) * feature_stride
            mask = real[:, None] & inside[None, :]
            values = tl.load(flat + offsets, mask=mask, other=0).to(tl.float32)
            centre = tl.load(
                centroids + c.to(tl.int64) * centroid_stride + columns, mask=inside, other=0
            )
            difference = values - centre[None, :]
            squares += difference * difference
        tl.store(distances + samples, tl.sqrt_rn(tl.sum(squares, 1)), mask=real)


@dataclass(frozen=True)
class Config:
    """How a kernel is launched: samples and features of a tile, and warps per program."""

    rows: int
    features: int
    warps: int


DEFAULT = Config(16, 256, 4)
"""Of a card that is not in the table."""
CONFIGS = {
    # 48 registers for the sums and 72 for the distances leave an SM room for 10 and 7 programs: 80
    # and 56 KiB of tiles on their way, where an A100 needs 19.
    (8, 0): Config(16, 128, 4),
    # 40 and 64 registers: 12 and 8 programs, 96 and 64 KiB. An H100 needs 25, an H200 36.
    (9, 0): Config(16, 128, 4),
    # 78 and 128 registers: 6 and 4 programs, 96 and 64 KiB. A B200 needs 54.
    (10, 0): Config(16, 256, 4),
}
"""By compute capability. Reasoned from the compiled kernels, not measured, as no card has run them.
What is needed is the bandwidth times a latency of 1 us, over the SMs. Where a narrower tile keeps
as much on its way it is taken: of 784 pixels it leaves fewer lanes idle."""
INTERPRETED = Config(64, 256, 4)
"""In the interpreter, where larger tiles are quicker."""
PIECE = 128  # samples that one program adds up, in 32 bits


def config_for(capability: tuple[int, int]) -> Config:
    """The launch setting for a card of this compute capability."""
    return CONFIGS.get(capability, DEFAULT)


class TritonGroups:
    """`Groups` in three launches and a sort of the labels; the host waits for none of them."""

    def __init__(self, flat: Tensor, labels: Tensor, num_classes: int) -> None:
        self.flat, self.num_classes = flat, num_classes
        self.config = INTERPRETED
        if not interpreted():
            self.config = config_for(torch.cuda.get_device_capability(flat.device))
        # Labels out of range are sorted to the ends, outside of all classes.
        keys = labels.long().clamp(-1, num_classes).to(narrow(num_classes))
        keys, self.order = torch.sort(keys, stable=True)
        self.bounds = self.order.new_empty(num_classes + 1)
        self.piece_ends = self.order.new_empty(num_classes)
        with on_device(flat):
            plan_kernel[(1,)](
                *(keys, self.bounds, self.piece_ends, len(flat), num_classes),
                steps=len(flat).bit_length(),
                piece=PIECE,
                block=min(1024, triton.next_power_of_2(num_classes + 1)),
            )
        # Enough pieces for classes of any sizes, as each class may end with a short one.
        self.max_pieces = len(flat) // PIECE + min(num_classes, len(flat))
        self.pieces = (self.order, self.bounds, self.piece_ends)
        self.strides = (flat.stride(0), flat.stride(1))

    def sums(self, unit: float, *, whole: bool) -> Sums:
        """Exact sums (C, F) in whole units, see `Groups.sums`; by one kernel."""
        # The kernel rounds what it has read, which costs nothing: `whole` changes nothing here.
        num_features, config = self.flat.shape[1], self.config
        sums = self.order.new_zeros(self.num_classes, num_features)
        with on_device(self.flat):
            sums_kernel[(self.max_pieces * triton.cdiv(num_features, config.features),)](
                *(self.flat, *self.pieces, sums, *rounding(unit)),
                *(num_features, self.num_classes, *self.strides),
                steps=self.num_classes.bit_length(),
                piece=PIECE,
                rows=config.rows,
                features=config.features,
                num_warps=config.warps,
            )
        return Sums(sums, self.bounds.diff())

    def distances(self, centroids: Tensor) -> Tensor:
        """(N,) float32 distances to ``centroids`` (C, F), see `Groups.distances`; by one kernel."""
        distances = self.flat.new_empty(len(self.flat), dtype=torch.float32)
        with on_device(self.flat):
            distances_kernel[(self.max_pieces * (PIECE // self.config.rows),)](
                *(self.flat, *self.pieces, centroids, distances, self.flat.shape[1]),
                *(self.num_classes, *self.strides, centroids.stride(0)),
                steps=self.num_classes.bit_length(),
                piece=PIECE,
                rows=self.config.rows,
                features=self.config.features,
                num_warps=self.config.warps,
            )
        return distances


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's device the current one, on which Triton launches."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
