"""What the methods compute with samples: the filter, k-means, distances, and KIP's regression."""

from kernels.filter import Filtered, nearest_to_centroid
from kernels.kip import centred, kip_accuracy, kip_loss
from kernels.kmeans import Clusters, kmeans
from kernels.tangent import tangent_kernel

__all__ = [
    "Clusters",
    "Filtered",
    "centred",
    "kip_accuracy",
    "kip_loss",
    "kmeans",
    "nearest_to_centroid",
    "tangent_kernel",
]
