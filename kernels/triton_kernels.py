"""The Triton kernels of the distance filter: class bounds, sums and distances.

Samples are sorted by class (``order``), and each class is cut into pieces of at most ``piece``
samples. A program works on samples of one piece, so that the class's centroid is read once for
many samples. Only whole numbers are added atomically, so runs repeat to the bit. All element
offsets are 64 bits.
"""

import triton
import triton.language as tl


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
    keys,
    bounds,
    piece_ends,
    num_keys,
    num_classes,
    steps,
    piece: tl.constexpr,
    block: tl.constexpr,
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
            piece_ends + classes,
            pieces_before + tl.cumsum(pieces, 0),
            mask=classes < num_classes,
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
