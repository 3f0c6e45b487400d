"""The distance operations of the methods: the sample filter, k-means, pairwise distances."""

from kernels.filter import Filtered, nearest_to_centroid
from kernels.kmeans import Clusters, kmeans
from kernels.pairwise import pairwise_sq_distances

__all__ = ["Clusters", "Filtered", "kmeans", "nearest_to_centroid", "pairwise_sq_distances"]
