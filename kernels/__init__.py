"""What the methods compute with samples: the distance filter, and KIP's kernel regression."""

from kernels.filter import Filtered, nearest_to_centroid
from kernels.kip import centred, predictions, tangent_kernel

__all__ = ["Filtered", "centred", "nearest_to_centroid", "predictions", "tangent_kernel"]
