"""The operators as torch.compile and torch.export see them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels import Filtered, kmeans_filter, nearest_to_centroid, pairwise_sq_distances
from kernels.operators import kmeans_op, nearest_op
from kernels.pairwise import pairwise_op
from tests.kernels.cases import CLASSES, DEVICE, draw, every_backend, kept


@pytest.fixture
def labelled() -> tuple[Tensor, Tensor]:
    samples, labels = draw([9, 4, 0, 12], 6, seed=4)
    return torch.tensor(samples, device=DEVICE), torch.tensor(labels, device=DEVICE)


@every_backend
def test_torch_finds_nothing_wrong_with_them(backend: str, labelled: tuple[Tensor, Tensor]) -> None:
    torch.library.opcheck(nearest_op, (*labelled, CLASSES, 0.8, backend))
    torch.library.opcheck(kmeans_op, (*labelled, CLASSES, 0.8, 2, 0, backend))
    empty = (labelled[0][:0], labelled[1][:0])
    torch.library.opcheck(nearest_op, (*empty, CLASSES, 0.8, backend))


def test_torch_finds_nothing_wrong_with_the_pairwise_one() -> None:
    x = torch.rand(2, 6, 3, device=DEVICE, requires_grad=True)
    y = torch.rand(2, 4, 3, device=DEVICE, requires_grad=True)
    torch.library.opcheck(pairwise_op, (x, y))
    torch.library.opcheck(pairwise_op, (x.detach().half(), y.detach().half()))


@pytest.fixture
def compiled() -> Any:
    """Compiles without leaving a graph; "aot_eager" needs no C compiler."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")


def test_the_filter_compiles_into_one_graph(compiled: Any, labelled: tuple[Tensor, Tensor]) -> None:
    def keep_best(samples: Tensor, labels: Tensor) -> tuple[Tensor, Filtered]:
        found = nearest_to_centroid(samples, labels, CLASSES, 0.5)
        return samples[found.indices], found

    samples, found = compiled(keep_best)(*labelled)
    expected_samples, expected = keep_best(*labelled)
    assert torch.equal(samples, expected_samples)
    assert torch.equal(found.distances, expected.distances)
    assert found.backend == expected.backend


def test_a_compiled_filter_still_refuses(compiled: Any, labelled: tuple[Tensor, Tensor]) -> None:
    filtered = compiled(lambda s, n: nearest_to_centroid(s, n, CLASSES, 0.5).indices)
    samples, labels = labelled
    assert len(filtered(samples, labels)) == 12
    samples = samples.clone()
    samples[3] = torch.inf
    with pytest.raises(ValueError, match="sample 3 has NaN or infinite values"):
        filtered(samples, labels)


def test_kmeans_and_pairwise_compile_too(compiled: Any, labelled: tuple[Tensor, Tensor]) -> None:
    def both(samples: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found = kmeans_filter(samples, labels, CLASSES, 0.5, num_clusters=2, seed=0)
        return found.indices, pairwise_sq_distances(samples, found.centroids[:, 0])

    for ours, theirs in zip(compiled(both)(*labelled), both(*labelled), strict=True):
        assert torch.equal(ours, theirs)


def test_it_can_be_exported_for_any_number_of_samples(labelled: tuple[Tensor, Tensor]) -> None:
    class Keep(nn.Module):
        def forward(self, samples: Tensor, labels: Tensor) -> Tensor:
            return nearest_to_centroid(samples, labels, CLASSES, 0.5).indices

    count = torch.export.Dim("count", min=2)
    program = torch.export.export(Keep(), labelled, dynamic_shapes=({0: count}, {0: count}))
    assert "onefold.nearest_to_centroid" in str(program.graph)
    for n in (25, 7):
        samples, labels = (t[:n] for t in labelled)
        expected = kept(samples, np.asarray(labels.cpu()), 0.5, "auto")
        assert program.module()(samples, labels).tolist() == expected
