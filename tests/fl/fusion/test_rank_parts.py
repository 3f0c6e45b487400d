"""The filter over several ranks: the samples that one rank keeps, wherever they are cut."""

import pytest
import torch
from torch import Tensor

from fl.fusion.group import Group
from fl.fusion.rank import RankParts
from kernels import Filtered, nearest_to_centroid
from kernels.exact import rounded, unit_for
from kernels.filter import nearest_of
from kernels.parts import Local
from tests.fl.fusion.threads import ThreadGroup, on_ranks
from tests.fl.toy import CPU

PIXEL = unit_for(1.0)


def over_ranks(
    images: Tensor, labels: Tensor, cuts: list[int], keep: float, step: float | None
) -> tuple[list[Filtered], list[int]]:
    """What each rank finds, and how many values the first one exchanged, call by call."""
    blocks = list(zip(images.tensor_split(cuts), labels.tensor_split(cuts), strict=True))
    exchanged: list[int] = []

    class Counted(Group):
        def __init__(self, group: ThreadGroup) -> None:
            self.rank, self.size, self._group = group.rank, group.size, group

        def sum(self, tensor: Tensor) -> None:
            if self.rank == 0:
                exchanged.append(tensor.numel())
            self._group.sum(tensor)

    def work(group: ThreadGroup) -> Filtered:
        own, first = blocks[group.rank], sum(len(b[1]) for b in blocks[: group.rank])
        parts = RankParts(Local(*own, 3, device=CPU), Counted(group), first, len(labels))
        return nearest_of(parts, keep, step)

    return on_ranks(len(blocks), work), exchanged


def draw(count: int) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(count)
    labels = torch.randint(3, (count,), generator=stream)
    return rounded(torch.rand(count, 50, generator=stream), PIXEL), labels


@pytest.mark.parametrize("cuts", [[20], [0, 7, 7, 50], [60]])
@pytest.mark.parametrize("step", [None, PIXEL])
def test_every_rank_finds_what_one_finds(cuts: list[int], step: float | None) -> None:
    images, labels = draw(60)
    expected = nearest_to_centroid(images, labels, 3, 0.7, backend="reference")
    for found in over_ranks(images, labels, cuts, 0.7, step)[0]:
        assert torch.equal(found.indices, expected.indices)
        assert torch.equal(found.centroids, expected.centroids)


def test_ties_are_decided_among_all_ranks_samples() -> None:
    """All samples are equal: of each class the first half stays, on whichever rank it is."""
    images, labels = draw(1)[0].expand(60, -1), torch.arange(60) % 3
    found, exchanged = over_ranks(images, labels, [13, 45], 0.5, PIXEL)
    assert all(f.indices.tolist() == list(range(30)) for f in found)
    assert exchanged == [60, 3 * (50 + 1), 60, 60]  # labels, sums, distances, exact distances


def test_no_samples_are_exchanged() -> None:
    _, exchanged = over_ranks(*draw(60), [20], 0.7, PIXEL)
    assert exchanged == [60, 3 * (50 + 1), 60]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_value_that_is_none_ends_all_ranks(rank: int) -> None:
    images, labels = draw(60)
    images[40 * rank, 3] = torch.nan
    with pytest.raises(ValueError, match=r"sample \d+ has NaN or infinite values"):
        over_ranks(images, labels, [20], 0.7, None)
