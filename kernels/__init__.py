"""The batched distance operation of the synthetic-sample filter."""

from kernels.filter import Filtered, nearest_to_centroid

__all__ = ["Filtered", "nearest_to_centroid"]
