"""Runs clients and server on the machine: on one computer or on many."""

import os

# Torch reads this when it loads its thread pool, so it must be set before. Waiting threads that
# spin take the cores from other processes: with one other busy process on two cores, a training
# step of VGG-9 took 840 ms instead of 59 (docs/log.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
