"""A GPU that is pretended, for tests on machines without one.

    with pretended_gpus(2):
        ...

Inside, torch says that there are CUDA devices. Their tensors lie in main memory and are computed
on the CPU, so results have the CPU's bits; but they say ``cuda:0``, and an operation that mixes
devices raises as CUDA would. So a tensor that was made without its device, or used where its values
cannot be read, fails here as it would fail on a GPU. What only CUDA can show stays untested: its
kernels and their rounding, its memory, its streams, its generators' numbers.
"""

from tests.pretended_gpu.pretence import PretendedGpus, pretended_gpus

__all__ = ["PretendedGpus", "pretended_gpus"]
