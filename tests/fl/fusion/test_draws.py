"""Random numbers by counter: a sample's own, uniform, independent."""

import torch

from fl.fusion.draws import BITS, draw_bits, sample_keys


def keys(count: int = 400, seed: int = 0, epoch: int = 1, purpose: str = "fusion") -> torch.Tensor:
    return sample_keys(seed, purpose, epoch, torch.arange(count))


def test_numbers_follow_from_the_sample_not_from_its_neighbours() -> None:
    whole = draw_bits(keys(), 1, 30)
    some = torch.tensor([7, 399, 0])
    assert torch.equal(draw_bits(keys()[some], 1, 30), whole[some])
    assert torch.equal(draw_bits(keys(), 1, 12), whole[:, :12])


def test_every_name_has_numbers_of_its_own() -> None:
    streams = [
        draw_bits(keys(), 0, 50),
        draw_bits(keys(), 1, 50),
        draw_bits(keys(seed=1), 0, 50),
        draw_bits(keys(epoch=2), 0, 50),
        draw_bits(keys(purpose="other"), 0, 50),
    ]
    for i, one in enumerate(streams):
        for other in streams[:i]:
            assert (one == other).float().mean() < 0.001
            both = torch.stack([one.flatten(), other.flatten()]).double()
            assert both.corrcoef()[0, 1].abs() < 0.03


def test_bits_are_uniform_and_independent() -> None:
    bits = draw_bits(keys(2000), 0, 64)
    assert bits.min() >= 0
    assert bits.max() < 2**BITS
    uniform = bits.double() / 2**BITS
    assert (uniform.mean(0) - 0.5).abs().max() < 0.04
    assert (uniform.mean(1) - 0.5).abs().max() < 0.19
    assert (uniform.T.corrcoef() - torch.eye(64)).abs().max() < 0.12
    assert (uniform[:64].corrcoef() - torch.eye(64)).abs().max() < 0.7
    for bit in (0, 1, 15, 16, 31):
        assert abs((bits >> bit & 1).double().mean() - 0.5) < 0.01
