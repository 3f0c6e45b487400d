"""Numbers bent so that they are a truncated normal's, and a decoder that takes them."""

import math

import pytest
import torch
from torch import nn

from fl.models import Decoder
from fl.models.cvae import TruncatedDecoder, truncate


def test_truncated_numbers_have_the_truncated_normals_distribution() -> None:
    z = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    for bound in (1.0, 3.0):
        bent = truncate(z, bound)
        assert bent.abs().max() <= bound
        density = math.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
        inside = math.erf(bound / math.sqrt(2))
        variance = 1 - 2 * bound * density / inside
        assert bent.var().item() == pytest.approx(variance, rel=0.01)
        assert bent.mean().item() == pytest.approx(0, abs=0.01)
        below = (bent < bound / 2).float().mean().item()
        expected = 0.5 + math.erf(bound / 2 / math.sqrt(2)) / 2 / inside
        assert below == pytest.approx(expected, abs=0.005)


def test_extreme_numbers_stay_within_the_bound() -> None:
    z = torch.tensor([-40.0, -8.0, 0.0, 8.0, 40.0])
    bent = truncate(z, 3.0)
    assert bent.tolist() == pytest.approx([-3, -3, 0, 3, 3], abs=1e-3)


def test_a_wide_bound_changes_nothing() -> None:
    z = torch.randn(100)
    torch.testing.assert_close(truncate(z, 9.0), z, atol=1e-4, rtol=1e-4)


def test_a_truncated_decoder_answers_for_the_bent_z() -> None:
    plain = Decoder(nn.Linear(2 + 3, 4), latent=2, num_classes=3)
    z, onehot = torch.randn(5, 2), torch.eye(3)[[0, 1, 2, 0, 1]]
    expected = plain(truncate(z, 1.0), onehot)
    torch.testing.assert_close(TruncatedDecoder(plain, 1.0)(z, onehot), expected)
