"""Samples from the clients' decoders, and how many each draws."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor, nn

from fl.errors import UserError
from fl.fusion import synthesis
from fl.fusion.synthesis import (
    Draw,
    client_shares,
    draw_samples,
    label_share,
    plan_draws,
    portions,
    share_out,
    squared_counts,
    truncate_to_bytes,
)
from fl.models.architectures.cvaes import Decoder
from fl.training.generator import starting_generator
from tests.fl.toy import CPU, GENERATOR, PROBLEM

LATENT, CLASSES = 4, 3
ALLOCATION = np.array([[2, 0, 5], [0, 3, 1], [4, 0, 0]])


@dataclass
class Drawn:
    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def sampled(
    decoders: dict[int, Decoder],
    allocation: np.ndarray = ALLOCATION,
    *,
    seed: int = 0,
    pixels: tuple[int, int] = (28, 28),
    ranks: int = 1,
) -> Drawn:
    shares = share_out(plan_draws(list(decoders), allocation), ranks)
    images = []
    for draws in shares:
        count = sum(map(len, draws))
        into = torch.empty(count, 1, *pixels), torch.empty(count, LATENT)
        stream = (seed, "synthesis")
        draw_samples(decoders, draws, latent=LATENT, stream=stream, device=CPU, into=into, drawn={})
        images.append(into[0])
    labels = [draw.labels for draws in shares for draw in draws]
    return Drawn(torch.cat(images), torch.cat([torch.empty(0, dtype=torch.int64), *labels]))


def real_decoders(*ids: int) -> dict[int, Decoder]:
    """Every client's decoder has the same weights: only their noise tells them apart."""
    return {id: starting_generator(GENERATOR, PROBLEM).decoder for id in ids}


class Signature(nn.Module):
    """Draws its number and the label it was asked for, as the logits of two pixels."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, noise_and_label: Tensor) -> Tensor:
        label = noise_and_label[:, LATENT:].argmax(1)
        number = torch.full_like(label, self.number, dtype=torch.float32)
        return torch.stack([number, label], 1).view(-1, 1, 1, 2)


class Noise(nn.Module):
    """Draws the noise that it is given."""

    def forward(self, noise_and_label: Tensor) -> Tensor:
        return noise_and_label[:, :LATENT].reshape(-1, 1, 1, LATENT)


def only(layers: nn.Module) -> dict[int, Decoder]:
    return {0: Decoder(layers, LATENT, CLASSES)}


def test_every_decoder_draws_every_class_as_often_as_allocated() -> None:
    decoders = {id: Decoder(Signature(id), LATENT, CLASSES) for id in (0, 1, 2)}
    synthetic = sampled(decoders, pixels=(1, 2))
    assert len(synthetic) == ALLOCATION.sum()
    drawn = torch.logit(synthetic.images).round().long().view(-1, 2)
    counts = np.zeros_like(ALLOCATION)
    for (decoder, asked), label in zip(drawn.tolist(), synthetic.labels.tolist(), strict=True):
        assert asked == label
        counts[decoder, label] += 1
    assert np.array_equal(counts, ALLOCATION)
    assert synthetic.labels.dtype == torch.int64


def test_images_are_pixels_from_zero_to_one() -> None:
    images = sampled(real_decoders(0, 1, 2)).images
    assert images.shape == (ALLOCATION.sum(), 1, 28, 28)
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert torch.equal(images * 2**18, (images * 2**18).round())  # multiples of their unit
    assert images.unique().numel() > 1000
    assert not images.requires_grad


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_decoder_that_draws_no_numbers_is_refused_by_its_client(ranks: int) -> None:
    decoders = {
        k: Decoder(Signature(k if k != 5 else math.nan), LATENT, CLASSES) for k in (2, 5, 7)
    }
    with pytest.raises(UserError, match=r"decoder of client 5 makes pixels from nan to nan, they"):
        sampled(decoders, pixels=(1, 2), ranks=ranks)


def test_portions_are_the_batches_in_order_of_so_many_clients_at_most() -> None:
    counts = np.array([[300, 0], [1, 2], [0, 513], [4, 4], [1, 0]])
    draws = plan_draws([3, 5, 8, 9, 11], counts)
    assert portions(draws, 5) == [draws]

    def clients(portion: list[Draw]) -> set[int]:
        return {draw.client for draw in portion}

    cut = portions(draws, 2)
    assert [draw for portion in cut for draw in portion] == draws
    assert [clients(portion) for portion in cut] == [{3, 5}, {8, 9}, {11}]
    assert portions([], 2) == [[]]


def test_a_clients_samples_do_not_depend_on_who_else_takes_part() -> None:
    together = sampled(real_decoders(3, 7, 8))
    alone = sampled(real_decoders(7), ALLOCATION[1:2])
    first = int(ALLOCATION[0].sum())
    torch.testing.assert_close(together.images[first : first + len(alone)], alone.images)
    assert torch.equal(together.labels[first : first + len(alone)], alone.labels)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_samples_are_the_same_bits_on_any_number_of_ranks(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesis, "BATCH", 2)
    alone, together = (sampled(real_decoders(0, 1, 2), ranks=n) for n in (1, ranks))
    assert torch.equal(together.images, alone.images)
    assert torch.equal(together.labels, alone.labels)


def test_the_batch_size_changes_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sampled(real_decoders(0, 1, 2))
    monkeypatch.setattr(synthesis, "BATCH", 2)
    parts = sampled(real_decoders(0, 1, 2))
    torch.testing.assert_close(parts.images, whole.images)
    assert torch.equal(parts.labels, whole.labels)


@settings(max_examples=100, derandomize=True)
@given(
    rows=st.lists(st.lists(st.integers(0, 900), min_size=2, max_size=2), min_size=1, max_size=5),
    ranks=st.integers(1, 6),
)
def test_ranks_share_consecutive_batches_evenly(rows: list[list[int]], ranks: int) -> None:
    draws = plan_draws(range(len(rows)), np.array(rows))
    shares = share_out(draws, ranks)
    assert [draw for share in shares for draw in share] == draws
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) - sum(sizes) / ranks <= synthesis.BATCH


def test_samples_repeat_with_the_seed_and_differ_by_seed_and_client() -> None:
    row = ALLOCATION[:1]
    images = sampled(real_decoders(4), row).images
    torch.manual_seed(5)
    assert torch.equal(sampled(real_decoders(4), row).images, images)
    assert not torch.allclose(sampled(real_decoders(4), row, seed=1).images, images)
    assert not torch.allclose(sampled(real_decoders(5), row).images, images)


def test_noise_is_standard_normal_and_new_for_every_sample() -> None:
    images = sampled(only(Noise()), np.array([[1500, 0, 1500]]), pixels=(1, LATENT)).images
    noise = torch.logit(images.double()).view(3000, LATENT)
    assert len(noise.unique(dim=0)) == 3000
    assert noise.mean(0).abs().max() < 0.1
    assert (noise.T.cov() - torch.eye(LATENT)).abs().max() < 0.15


def test_decoders_draw_in_eval_mode() -> None:
    dropping = nn.Sequential(nn.Dropout(0.9), Noise()).train()
    images, plain = (
        sampled(only(layers), ALLOCATION[:1], pixels=(1, LATENT)).images
        for layers in (dropping, Noise())
    )
    assert torch.equal(images, plain)


def test_a_decoder_that_is_allocated_nothing_draws_nothing() -> None:
    synthetic = sampled(real_decoders(0, 1), np.array([[0, 0, 0], [0, 2, 0]]))
    assert synthetic.labels.tolist() == [1, 1]
    assert sampled(real_decoders(0), np.zeros((1, 3), np.int64)).images.shape == (0, 1, 28, 28)


def test_bytes_are_cut_off_not_rounded() -> None:
    pixels = torch.tensor([0.0, 0.9 / 255, 1.5 / 255, 254.99 / 255, 1.0])
    assert (truncate_to_bytes(pixels) * 255).round().tolist() == [0, 0, 1, 254, 255]
    assert truncate_to_bytes(pixels).dtype == torch.float32


COUNTS = arrays(
    np.int64,
    array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.integers(0, 40) | st.integers(0, 10**6),
)
HELD = COUNTS.filter(lambda counts: bool(counts.sum(axis=1).all()))
TOTALS = st.integers(0, 20_000)
examples = settings(max_examples=100, derandomize=True)


@examples
@given(counts=COUNTS, total=TOTALS)
def test_squared_counts_follow_the_released_codes_formula(counts: np.ndarray, total: int) -> None:
    allocation = squared_counts(counts, total)
    assert allocation.dtype == np.int64
    decoders, classes = counts.shape
    quota = total // classes
    for c in range(classes):
        squares = [int(counts[k, c]) ** 2 for k in range(decoders)]
        for k in range(decoders):
            expected = quota * squares[k] // sum(squares) if sum(squares) else 0
            assert allocation[k, c] == expected


@examples
@given(counts=HELD, total=TOTALS)
def test_label_shares_are_each_decoders_own_distribution_rounded(
    counts: np.ndarray, total: int
) -> None:
    allocation = label_share(counts, total)
    assert allocation.dtype == np.int64
    assert allocation.shape == counts.shape
    for row, own_counts in zip(allocation, counts, strict=True):
        own_total = int(row.sum())
        for share, count in zip(row.tolist(), own_counts.tolist(), strict=True):
            exact = Fraction(own_total * count, int(own_counts.sum()))
            assert exact - 1 < share < exact + 1
            assert share == 0 or count > 0


@examples
@given(counts=HELD, total=TOTALS)
def test_label_shares_give_every_decoder_the_same_total(counts: np.ndarray, total: int) -> None:
    totals = label_share(counts, total).sum(axis=1)
    assert totals.sum() == total
    assert totals.max() - totals.min() <= 1
    assert (np.diff(totals) <= 0).all()  # the first ones make one more


def test_the_largest_remainder_is_rounded_up_and_of_equal_ones_the_first() -> None:
    assert label_share(np.array([[10, 25, 65]]), 10).tolist() == [[1, 3, 6]]
    assert label_share(np.array([[1, 5, 4]]), 4).tolist() == [[0, 2, 2]]


def test_decoders_draw_in_proportion_to_their_clients_data() -> None:
    counts = np.array([[30, 0, 30], [0, 20, 0], [20, 0, 0]])

    def drawn(total: int) -> np.ndarray:
        return client_shares(counts, total, [np.random.default_rng(k) for k in range(3)])

    rows = drawn(1000)
    assert rows.sum(axis=1).tolist() == [600, 200, 200]
    assert np.all(rows[counts == 0] == 0)
    assert abs(rows[0, 0] - 300) < 60  # five standard deviations
    assert drawn(7).sum() == 7
