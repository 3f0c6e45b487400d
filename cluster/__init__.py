"""Runs clients and server on the machine: on one computer or on many."""

import os

# Torch reads these when it loads its thread pool, so they must be set before. Waiting threads that
# spin take the cores from other processes: with one other busy process on two cores, a training
# step of VGG-9 took 840 ms instead of 59. Threads that sleep at once take as long to wake as a
# small operation takes. So they spin for a moment, and then sleep (docs/dev/log.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Torch asks the driver whether there is a GPU, and does not start CUDA for it: a rank of the server
# names its GPU afterwards, and CUDA takes no other once it has started.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
