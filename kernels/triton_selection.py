"""The Triton kernel of the distance filter that finds each class's threshold.

It does not sort: the quota-th smallest distance is found digit by digit from histograms of eight
bits. Floats that are not negative are ordered like their bits.
"""

import triton
import triton.language as tl


@triton.jit
def thresholds_kernel(  # type: ignore[no-untyped-def]
    distances,
    bounds,
    quotas,
    thresholds,
    block: tl.constexpr,
):
    """Writes the bits of one class's threshold; ``distances`` are sorted by class."""
    c = tl.program_id(0)
    begin = tl.load(bounds + c)
    end = tl.load(bounds + c + 1)
    quota = tl.load(quotas + c).to(tl.int32)
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
    tl.store(thresholds + c, threshold)
