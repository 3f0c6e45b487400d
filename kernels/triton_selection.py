"""The Triton kernels of the distance filter that select each class's nearest samples and list them.

They do not sort: a class's threshold, its quota-th smallest distance, is found digit by digit from
histograms of eight bits. Floats that are not negative are ordered like their bits.
"""

import triton
import triton.language as tl

STATUS_SIZE = 4  # kept samples, first bound, last bound, bits of the largest distance


@triton.jit
def select_kernel(  # type: ignore[no-untyped-def]
    distances,
    order,
    bounds,
    kept,
    status,
    numerator,
    denominator,
    block: tl.constexpr,
):
    """Marks one class's nearest samples in ``kept``; ``distances`` are sorted by class."""
    c = tl.program_id(0)
    begin = tl.load(bounds + c)
    end = tl.load(bounds + c + 1)
    quota = tl.minimum(tl.maximum((end - begin) * numerator // denominator, 1), end - begin)
    quota = quota.to(tl.int32)
    threshold = quota * 0
    bins = tl.arange(0, 256)
    for digit in tl.static_range(4):
        shift = 24 - 8 * digit
        counts = tl.zeros((256,), tl.int32)
        for first in range(begin, end, block):
            positions = first + tl.arange(0, block)
            real = positions < end
            bits = tl.load(distances + positions, mask=real, other=0).to(tl.int32, bitcast=True)
            if digit > 0:  # only distances with the threshold's higher digits
                real = real & ((bits >> (shift + 8)) == (threshold >> (shift + 8)))
            others = block - tl.sum(real.to(tl.int32), 0)
            counts += tl.histogram(tl.where(real, (bits >> shift) & 255, 0), 256)
            counts -= tl.where(bins == 0, others, 0)
        found = tl.sum((tl.cumsum(counts, 0) < quota).to(tl.int32), 0)
        quota -= tl.sum(tl.where(bins < found, counts, 0), 0)
        threshold |= found << shift
    # The rest of the quota goes to the first samples whose distance is the threshold.
    equal_before = quota * 0
    largest = quota * 0
    for first in range(begin, end, block):
        positions = first + tl.arange(0, block)
        real = positions < end
        bits = tl.load(distances + positions, mask=real, other=0).to(tl.int32, bitcast=True)
        equal = (real & (bits == threshold)).to(tl.int32)
        rank = equal_before + tl.cumsum(equal, 0)
        keep = (bits < threshold) | ((equal > 0) & (rank <= quota))
        samples = tl.load(order + positions, mask=real, other=0)
        tl.store(kept + samples, keep.to(tl.int8), mask=real)
        equal_before += tl.sum(equal, 0)
        largest = tl.maximum(largest, tl.max(bits & 0x7FFFFFFF, 0))
    tl.atomic_max(status + 3, largest.to(tl.int64))


@triton.jit
def count_kernel(kept, counts, num_samples, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many samples of each block are kept."""
    samples = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    marks = tl.load(kept + samples, mask=samples < num_samples, other=0)
    tl.store(counts + tl.program_id(0), tl.sum(marks.to(tl.int64), 0))


@triton.jit
def list_kernel(  # type: ignore[no-untyped-def]
    kept,
    counts,
    bounds,
    indices,
    status,
    num_samples,
    num_classes,
    block: tl.constexpr,
):
    """Lists the kept samples of each block, ascending, and writes the status for the host."""
    number = tl.program_id(0)
    before = tl.zeros((1,), tl.int64)
    for first in range(0, number, block):
        blocks = first + tl.arange(0, block)
        before += tl.sum(tl.load(counts + blocks, mask=blocks < number, other=0), 0)
    samples = number.to(tl.int64) * block + tl.arange(0, block)
    marks = tl.load(kept + samples, mask=samples < num_samples, other=0).to(tl.int64)
    places = before + tl.cumsum(marks, 0) - marks
    tl.store(indices + places, samples, mask=marks > 0)
    if number == tl.num_programs(0) - 1:
        one = tl.arange(0, 1)
        tl.store(status + one, before + tl.sum(marks, 0))
        tl.store(status + 1, tl.load(bounds))
        tl.store(status + 2, tl.load(bounds + num_classes))
