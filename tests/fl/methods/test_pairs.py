"""Between two classes decides who has learned both."""

import pytest
import torch

from fl.methods.pairs import ROWS, Expert, Poll

VOTES = torch.tensor([[0.9, 0.05, 0.4]])


def expert(counts: list[int], logits: list[float]) -> Expert:
    return Expert(torch.tensor(counts), torch.tensor([logits]))


def test_votes_alone_are_ranked_as_they_are() -> None:
    shares = Poll(VOTES).shares(10.0)[0]
    expected = torch.tensor(
        [0.9 / 0.95 * 0.9 / 1.3, 0.05 / 0.95 * 0.05 / 0.45, 0.4 / 1.3 * 0.4 / 0.45]
    )
    torch.testing.assert_close(shares, expected / expected.sum())


def test_who_has_learned_both_overrules_the_votes() -> None:
    """All votes say 0, of those who never saw a 2; the one that knows 0 and 2 is sure of 2."""
    sure = expert([500, 0, 300], [0.0, 0.0, 9.0])
    assert Poll(VOTES).shares(10.0).argmax() == 0
    assert Poll(VOTES, (sure,)).shares(10.0).argmax() == 2


def test_who_has_learned_one_of_the_two_says_nothing_between_them() -> None:
    sure = expert([500, 0, 0], [9.0, 0.0, 0.0])
    poll = Poll(VOTES).heard(torch.zeros(1, 3), sure)
    torch.testing.assert_close(poll.shares(10.0), Poll(VOTES).shares(10.0))


def test_an_expert_weighs_as_its_rarer_class() -> None:
    votes = torch.tensor([[1.0, 1e-9]])
    for rarer, expected in ((10, 1 / 2), (30, 1 / 4), (90, 1 / 10)):
        other = expert([rarer, 700], [-99.0, 99.0])
        share = Poll(votes, (other,)).shares(10.0)[0, 0]
        assert float(share) == pytest.approx(expected, rel=1e-4)


def test_each_sample_is_judged_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    size = 2 * ROWS + 3
    votes, logits = torch.rand(2, size, 4, generator=generator)
    counts = torch.tensor([3, 9, 0, 40])
    together = Poll(votes, (Expert(counts, logits),)).shares(10.0)
    assert together.sum(1).tolist() == pytest.approx([1.0] * size)
    for i in (0, ROWS, size - 1):
        alone = Poll(votes[i : i + 1], (Expert(counts, logits[i : i + 1]),)).shares(10.0)
        torch.testing.assert_close(alone[0], together[i])
