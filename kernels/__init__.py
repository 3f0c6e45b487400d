"""The distance operations of the methods: the sample filter, its k-means, pairwise distances."""

from kernels.filter import Filtered, kmeans_filter, nearest_to_centroid
from kernels.pairwise import pairwise_sq_distances

__all__ = ["Filtered", "kmeans_filter", "nearest_to_centroid", "pairwise_sq_distances"]
