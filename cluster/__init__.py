"""The machine: clients and server on one computer or many."""

import os

# Read when torch loads its thread pool, so it must be set before. Waiting threads that spin take
# the cores from whoever shares them: with one other busy process on two cores, a training step of
# VGG-9 took 840 ms instead of 59 (docs/log.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
