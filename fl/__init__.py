"""The science of Onefold: clients' training, fusion at the server, and the methods."""

PACKAGES = ("cluster", "fl", "kernels", "onefold", "slurm", "tune")
"""Onefold's own, which every node has."""
