"""Votes on a sample's class, and decoders with a longer code."""

import math

import pytest
import torch
from torch import Tensor, nn

from fl.fusion.voting import (
    MOTION,
    VariedDecoder,
    Voter,
    best_of_each_class,
    elected,
    energies,
    energy_levels,
    log_frequencies,
    moved,
)
from fl.models import Decoder
from tests.fl.toy import CPU

KNOWN = torch.tensor([True, True, False])
SHARE = torch.tensor([0.5, 0.2, 0.0])
LOGITS = torch.tensor([[4.0, 1.0, 9.0], [0.5, 3.0, -2.0]])


def voter(levels: tuple[float, float] | None = (1.0, 5.0)) -> Voter:
    return Voter(share=SHARE, known=KNOWN, correction=torch.zeros(3), levels=levels)


def test_a_vote_is_share_times_answer_times_gate() -> None:
    votes = voter().votes(LOGITS)
    for row, logits in zip(votes.tolist(), LOGITS.tolist(), strict=True):
        energy = math.log(sum(math.exp(f) for f in logits[:2]))
        gate = 1 / (1 + math.exp(-4 * (energy - 3) / 4))
        whole = sum(math.exp(f) for f in logits)
        expected = [
            gate * s * math.exp(f) / whole for s, f in zip(SHARE.tolist(), logits, strict=True)
        ]
        assert row == pytest.approx(expected)
    assert not votes[:, 2].any()


def test_the_gate_is_shut_on_strange_images_and_open_on_known_ones() -> None:
    at = torch.tensor([[1.0, -99.0, 0.0], [3.0, -99.0, 0.0], [5.0, -99.0, 0.0]])
    assert voter().gate(at).tolist() == pytest.approx([0.1192, 0.5, 0.8808], abs=1e-3)
    assert voter(None).gate(at).tolist() == [1, 1, 1]


def test_levels_that_are_no_levels_leave_the_gate_soft() -> None:
    at = torch.tensor([[3.0, -99.0, 0.0], [3.5, -99.0, 0.0]])
    assert voter((3.0, 3.0)).gate(at).tolist() == pytest.approx([0.5, 0.8808], abs=1e-3)


def test_a_classifier_that_answers_by_frequency_says_nothing_when_corrected() -> None:
    counts = torch.tensor([79, 19, 0])
    guess = log_frequencies(counts)
    assert guess.exp().tolist() == pytest.approx([80 / 101, 20 / 101, 1 / 101])
    corrected = Voter(share=torch.ones(3), known=KNOWN, correction=guess)
    assert corrected.votes(guess.unsqueeze(0))[0].tolist() == pytest.approx([1 / 3] * 3)


def test_levels_are_the_medians_within_and_without() -> None:
    labels = torch.tensor([0, 1, 2, 2, 0])
    logits = torch.tensor([[f, -99.0, 50.0] for f in (5.0, 6.0, 1.0, 2.0, 9.0)])
    assert energies(logits, KNOWN).tolist() == pytest.approx([5, 6, 1, 2, 9])
    low, high = energy_levels(logits, labels, KNOWN)
    assert (low, high) == pytest.approx((1, 6))


def test_who_knows_everything_finds_its_least_tenth_strange() -> None:
    logits = torch.arange(101.0).unsqueeze(1)
    low, high = energy_levels(logits, torch.zeros(101, dtype=torch.int64), torch.tensor([True]))
    assert (low + high) / 2 == pytest.approx(10)
    assert high - low == pytest.approx(2 * math.sqrt((101**2 - 1) / 12))


def test_shares_sum_to_one_also_where_nobody_votes() -> None:
    shares, evidence = elected(torch.tensor([[0.3, 0.1, 0.0], [0.0, 0.0, 0.0]]))
    assert shares[0].tolist() == pytest.approx([0.75, 0.25, 0], abs=1e-6)
    assert shares[1].tolist() == pytest.approx([1 / 3] * 3)
    assert evidence.tolist() == pytest.approx([0.4, 0], abs=1e-6)


def test_the_best_of_each_class_are_those_with_the_most_and_clearest_votes() -> None:
    shares, evidence = elected(torch.rand(40, 3, generator=torch.Generator().manual_seed(0)))
    quotas = [4, 0, 7]
    expected = set()
    for c, quota in enumerate(quotas):
        worth = [float(e * q**2) for e, q in zip(evidence, shares[:, c], strict=True)]
        expected |= set(sorted(range(40), key=lambda i: -worth[i])[:quota])
    assert best_of_each_class(shares, evidence, quotas).tolist() == sorted(expected)


Z, CLASSES, SIDE = 2, 3, 12


def decoder() -> Decoder:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(Z + CLASSES, SIDE**2), nn.Unflatten(1, (1, SIDE, SIDE)))
    return Decoder(layers, latent=Z, num_classes=CLASSES)


def code(latent: int, count: int = 5) -> Tensor:
    return torch.randn(count, latent, generator=torch.Generator(CPU).manual_seed(1))


LABELS = torch.eye(CLASSES)[[0, 1, 2, 0, 1]]


def test_unmoved_it_draws_what_the_plain_decoder_draws() -> None:
    varied = VariedDecoder(decoder(), warp=0.0)
    z = code(varied.latent)
    assert z.shape[1] == Z + MOTION
    torch.testing.assert_close(varied(z, LABELS), decoder()(z[:, :Z], LABELS))


def test_another_strength_moves_the_same_images() -> None:
    still, moving = (VariedDecoder(decoder(), warp=w) for w in (0.0, 1.0))
    z = code(still.latent)
    expected = moved(still(z, LABELS).sigmoid(), z[:, Z:], 1.0)
    torch.testing.assert_close(moving(z, LABELS).sigmoid(), expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(expected, still(z, LABELS).sigmoid(), atol=1e-2)


def test_a_mixed_label_takes_the_place_of_the_label() -> None:
    varied = VariedDecoder(decoder(), warp=0.0, spread=1.5, mixing=2.0)
    z = code(varied.latent)
    assert z.shape[1] == Z + CLASSES + MOTION
    mixture = (2.0 * z[:, Z : Z + CLASSES]).softmax(1)
    torch.testing.assert_close(varied(z, LABELS), decoder()(1.5 * z[:, :Z], mixture))
    assert torch.equal(varied(z, LABELS), varied(z, LABELS.flip(0)))


def test_a_sample_does_not_depend_on_the_others() -> None:
    varied = VariedDecoder(decoder(), warp=1.0, mixing=2.0)
    z = code(varied.latent)
    alone = torch.cat([varied(z[[i]], LABELS[[i]]) for i in range(len(z))])
    torch.testing.assert_close(varied(z, LABELS), alone)


@pytest.mark.parametrize(("number", "axis"), [(4, 3), (5, 2)])
def test_shifts_are_a_twentieth_of_a_side_at_most(number: int, axis: int) -> None:
    image = torch.zeros(1, 1, 40, 40)
    image[..., 18:22, 18:22] = 1
    motion = torch.zeros(1, MOTION)
    motion[0, number] = 9.0
    place = torch.arange(40.0)

    def middle(x: Tensor) -> float:
        along = x.sum((0, 1, 5 - axis))
        return float((along * place).sum() / along.sum())

    assert middle(moved(image, motion, 1.0)) - middle(image) == pytest.approx(-2, abs=0.01)
    assert middle(moved(image, motion, 0.5)) - middle(image) == pytest.approx(-1, abs=0.01)


def test_no_motion_and_no_strength_leave_images_as_they_are() -> None:
    images = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(moved(images, torch.zeros(3, MOTION), 1.0), images)
    torch.testing.assert_close(moved(images, code(MOTION, 3), 0.0), images)


def test_what_comes_in_is_the_borders_pixel() -> None:
    white = torch.ones(4, 1, 8, 8)
    torch.testing.assert_close(moved(white, code(MOTION, 4), 2.0), white)
