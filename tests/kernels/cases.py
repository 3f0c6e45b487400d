"""What the tests of the distance kernels share: backends, drawn samples, and Algorithm 2 itself."""

import importlib.util
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import Filtered, nearest_to_centroid
from kernels.groups import interpreted

CLASSES = 4
SHARES = st.integers(1, 100).map(lambda percent: percent / 100)
SEEDS = st.integers(0, 2**32)
SIZES = st.lists(st.integers(0, 25), min_size=CLASSES, max_size=CLASSES)

HAS_CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_CUDA else "cpu")
HAS_TRITON = importlib.util.find_spec("triton") is not None and (HAS_CUDA or interpreted())

compiled_elsewhere = pytest.mark.skipif(
    HAS_CUDA or interpreted() or importlib.util.find_spec("triton") is None,
    reason="a GPU compiles them for real, the interpreter not at all; needs Triton",
)
interpreted_or_on_cuda = pytest.mark.skipif(
    not HAS_TRITON, reason="runs in test_interpreter.py, or on CUDA"
)

# Where Triton's kernels cannot run, test_interpreter.py runs these tests again, where they can.
FAST = ["torch", "triton"] if HAS_TRITON else ["torch"]
every_backend = pytest.mark.parametrize("backend", ["reference", *FAST])
fast_backends = pytest.mark.parametrize("backend", FAST)

# Interpreted kernels are slow: fewer examples, and fewest where one is many runs.
examples = settings(max_examples=3 if interpreted() else 60, derandomize=True)


def draw(sizes: list[int], features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of each class around a centre of its own, in random order."""
    stream = np.random.default_rng(seed)
    labels = stream.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = stream.normal(size=(len(sizes), features))
    samples = centres[labels] + stream.normal(size=(len(labels), features))
    return samples.astype(np.float32), labels


def run(
    samples: Tensor | np.ndarray,
    labels: np.ndarray | list[int],
    keep: float,
    backend: str = "auto",
    *,
    num_classes: int = CLASSES,
) -> Filtered:
    """The filter on this machine's device, its result on the CPU."""
    samples = torch.as_tensor(samples).to(DEVICE)
    labels = torch.as_tensor(labels, dtype=torch.int64, device=DEVICE)
    return on_cpu(nearest_to_centroid(samples, labels, num_classes, keep, backend=backend))


def on_cpu(found: Filtered) -> Filtered:
    return Filtered(found.indices.cpu(), found.distances.cpu(), found.centroids.cpu())


def kept(
    samples: Tensor | np.ndarray, labels: np.ndarray | list[int], keep: float, backend: str
) -> list[int]:
    """The indices that the filter keeps."""
    return run(samples, labels, keep, backend).indices.tolist()


def quota(count: int, keep: float) -> int:
    """How many of a class stay: exact, and at least one."""
    return min(count, max(1, int(Fraction(str(keep)) * count)))


def algorithm_2(
    samples: np.ndarray, labels: np.ndarray, keep: float
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Algorithm 2 in float64, class by class: kept indices, all distances, centroids."""
    indices: list[int] = []
    distances = np.zeros(len(samples))
    centroids = np.zeros((CLASSES, samples.shape[1]))
    for c in range(CLASSES):
        own = [i for i in range(len(samples)) if labels[i] == c]
        if not own:
            continue
        centroids[c] = sum(samples[i] for i in own) / len(own)
        for i in own:
            distances[i] = np.sqrt(((samples[i] - centroids[c]) ** 2).sum())
        own.sort(key=lambda i: (distances[i], i))
        indices += own[: quota(len(own), keep)]
    return sorted(indices), distances, centroids


def gap(distances: np.ndarray | Tensor, labels: np.ndarray, keep: float) -> float:
    """The smallest relative gap between the last kept and the first dropped distance of a class.

    Where it is tiny, rounding decides who stays, and results may differ.
    """
    smallest = np.inf
    for c in set(np.asarray(labels).tolist()):
        own = np.sort(np.asarray(distances, np.float64)[labels == c])
        stay = quota(len(own), keep)
        if stay < len(own) and own[-1] > 0:
            smallest = min(smallest, (own[stay] - own[stay - 1]) / own[-1])
    return float(smallest)
